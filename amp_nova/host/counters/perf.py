"""The one door to ``perf_event_open``: events, the PMUs of a machine, and what a refusal means."""

import ctypes
import errno
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from amp_nova.exceptions import CountersUnavailable
from amp_nova.model import cpulist

TYPE_HARDWARE, TYPE_SOFTWARE = 0, 1
INSTRUCTIONS = 1
TASK_CLOCK = 1
"""Nanoseconds on a CPU: a counter that every kernel has, for trying out the rest."""

# Bits of perf_event_attr.
INHERIT = 1 << 1
EXCLUDE_HYPERVISOR = 1 << 6
EXCLUDE_HOST = 1 << 19
TIMES = 1 | 2
"""Read format: time enabled and time running beside the value."""
GROUP = 1 << 3
"""Read format: all events of the group at once."""

_SYSCALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}
_ATTR_SIZE = 64  # PERF_ATTR_SIZE_VER0, which every kernel understands
_CLOSE_ON_EXEC = 8
_DEVICES = "sys/bus/event_source/devices"
_NO_COUNTER = "this machine has no hardware counter for {what}"
_REASONS = {
    errno.ENOENT: _NO_COUNTER,
    errno.ENODEV: _NO_COUNTER,
    errno.ENOSYS: "this kernel has no performance counters",
    errno.EOPNOTSUPP: _NO_COUNTER
    + " that the host may use: it has none, or KVM hands it to guests (mediated vPMU)",
    errno.EBUSY: "somebody else holds the hardware counters for {what}: end it, or free one with"
    " kernel.nmi_watchdog=0",
    errno.EINVAL: "the kernel or its PMU cannot count {what} in this way",
    errno.EMFILE: "no file descriptor is left to count {what}: raise LimitNOFILE of the agent",
    errno.ENFILE: "no file descriptor is left on this machine to count {what}: raise fs.file-max",
    errno.ESRCH: "the thread has gone",
}


@dataclass(frozen=True, slots=True)
class Event:
    """Something to count."""

    name: str
    kind: int
    config: int


@dataclass(frozen=True, slots=True)
class Pmu:
    """The counters of one core type; ``kind`` 0 stands for those of any core."""

    name: str
    kind: int = 0

    def event(self, event: Event) -> Event:
        """A hardware event on these counters.

        On a hybrid machine a plain one counts on one core type only: the type of the counters goes
        into the upper half.
        """
        if event.kind != TYPE_HARDWARE:
            return event
        return Event(event.name, event.kind, self.kind << 32 | event.config)


def open_event(
    event: Event, tid: int, group: int = -1, flags: int = 0, read_format: int = TIMES
) -> int:
    """A descriptor that counts an event of one thread on every CPU, from now on.

    Raises ``OSError`` as the kernel does; ``why`` puts it into words.
    """
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attr = struct.pack(
        "=IIQQQQQ16x",
        *(event.kind, _ATTR_SIZE, event.config, 0, 0, read_format),
        flags | EXCLUDE_HYPERVISOR,
    )
    return _perf_event_open(number, attr, tid, group)


def _perf_event_open(number: int, attr: bytes, tid: int, group: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(attr),
        ctypes.c_int(tid),
        ctypes.c_int(-1),
        ctypes.c_int(group),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)


def why(exc: OSError, what: str = "instructions", root: str | Path = "/") -> str:
    """Why the kernel refused to count, and what to do about it."""
    if exc.errno in (errno.EACCES, errno.EPERM):
        return (
            f"this user may not count {what}: kernel.perf_event_paranoid is {_paranoid(root)}; run"
            " as root, give CAP_PERFMON, or lower it"
        )
    text = _REASONS.get(exc.errno or 0, f"the kernel refused to count {{what}}: {exc.strerror}")
    return text.format(what=what)


def _paranoid(root: str | Path) -> str:
    try:
        return Path(root, "proc/sys/kernel/perf_event_paranoid").read_text().strip()
    except OSError:
        return "not known"


def pmus(root: str | Path = "/") -> tuple[Pmu, ...]:
    """The counters of this machine's cores: one set for each core type where it has several."""
    found = tuple(pmu for pmu, _ in _listed(root))
    return found if len(found) > 1 else (Pmu("cpu"),)


def _listed(root: str | Path) -> list[tuple[Pmu, frozenset[int]]]:
    """Every set of counters that says which pCPUs it belongs to."""
    found = []
    for path in sorted(Path(root, _DEVICES).glob("*/cpus")):
        try:
            pcpus = frozenset(cpulist.parse(path.read_text()))
            found.append((Pmu(path.parent.name, int(path.with_name("type").read_text())), pcpus))
        except (OSError, ValueError):
            continue
    return found


def mediated(root: str | Path = "/") -> str | None:
    """Why host counters are out of the question, where KVM gives the PMU to its guests.

    The kernel would refuse ours, or, when ours came first, the guests' first vCPU.
    """
    for path in sorted(Path(root, "sys/module").glob("kvm*/parameters/enable_mediated_pmu")):
        try:
            if path.read_text().strip() in ("Y", "1"):
                return (
                    "KVM gives the hardware counters to its guests (mediated vPMU): load"
                    f" {path.parts[-3]} with enable_mediated_pmu=0 to count on the host"
                )
        except OSError:
            continue
    return None


class ChildCounter:
    """One event of the children started while it is open; the caller's own share is negligible."""

    def __init__(self, event_type: int = TYPE_HARDWARE, config: int = INSTRUCTIONS) -> None:
        try:
            self._fd = open_event(Event("instructions", event_type, config), 0, flags=INHERIT)
        except OSError as exc:
            raise CountersUnavailable(why(exc)) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the counter back."""
        os.close(self._fd)

    def read(self) -> float | None:
        """Events so far, children included; ``None`` when the counter never got its turn."""
        value, enabled_ns, running_ns = struct.unpack("=QQQ", os.read(self._fd, 24))
        # Counters that are short take turns; what was missed is scaled up as perf stat does.
        return value * enabled_ns / running_ns if running_ns else None


def on_pcpu(pcpu: int, root: str = "/") -> ChildCounter:
    """A counter of instructions for children that run on this pCPU."""
    return ChildCounter(TYPE_HARDWARE, event_of(pcpu, root))


def event_of(pcpu: int, root: str = "/") -> int:
    """The event that counts instructions on this pCPU."""
    here = (pmu for pmu, pcpus in _listed(root) if pcpu in pcpus)
    return next(here, Pmu("cpu")).event(Event("", TYPE_HARDWARE, INSTRUCTIONS)).config


def why_missing(pcpus: list[int], root: str = "/") -> str | None:
    """Why instructions cannot be counted on one of these pCPUs, ``None`` when they can."""
    try:
        for pcpu in pcpus:
            with on_pcpu(pcpu, root):
                pass
    except CountersUnavailable as exc:
        return str(exc)
    return None
