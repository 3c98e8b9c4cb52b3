# SPDX-License-Identifier: Apache-2.0
"""``perf_event_open(2)``: events, the PMUs of a machine, and what an error means."""

import ctypes
import errno
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.sysfs import Tree
from amp_nova.kernel import files
from amp_nova.model import cpulist

TYPE_HARDWARE = 0

# Bits of perf_event_attr.
EXCLUDE_HYPERVISOR = 1 << 6
EXCLUDE_HOST = 1 << 19
TIMES = 1 | 2
"""Read format: add time enabled and time running."""
GROUP = 1 << 3
"""Read format: read all events of the group at once."""

_SYSCALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}
_ATTR_SIZE = 64  # PERF_ATTR_SIZE_VER0, which every kernel accepts
_CLOSE_ON_EXEC = 8
_DEVICES = "sys/bus/event_source/devices"
_NO_COUNTER = "this machine has no hardware counter for {what}"
_REASONS = {
    errno.ENOENT: _NO_COUNTER,
    errno.ENODEV: _NO_COUNTER,
    errno.ENOSYS: "this kernel has no performance counters",
    errno.EOPNOTSUPP: _NO_COUNTER
    + " that the host may use: it has none, or KVM hands it to guests (mediated vPMU)",
    errno.EBUSY: "another user holds the hardware counters for {what}: stop it, or free a"
    " counter with kernel.nmi_watchdog=0",
    errno.EINVAL: "the kernel or its PMU does not support this way of counting {what}",
    errno.EMFILE: "no file descriptor is left to count {what}: raise LimitNOFILE of the agent",
    errno.ENFILE: "no file descriptor is left on this machine to count {what}: raise fs.file-max",
    errno.ESRCH: "the thread has ended",
}


@dataclass(frozen=True, slots=True)
class Event:
    """An event to count: ``type`` and ``config`` of perf_event_attr."""

    name: str
    kind: int
    config: int


@dataclass(frozen=True, slots=True)
class Pmu:
    """The counters of one core type, or with ``kind`` 0 those of all cores."""

    name: str
    kind: int = 0

    def event(self, event: Event) -> Event:
        """The hardware event on these counters.

        On a hybrid machine a plain event counts on one core type only; the PMU's type belongs in
        the upper half of ``config`` (PERF_PMU_TYPE_SHIFT).
        """
        return Event(event.name, event.kind, self.kind << 32 | event.config)


INSTRUCTIONS = Event("instructions", TYPE_HARDWARE, 1)
CYCLES = Event("cycles", TYPE_HARDWARE, 0)


def open_event(
    event: Event, tid: int, group: int = -1, flags: int = 0, read_format: int = TIMES
) -> int:
    """A descriptor that counts an event of one thread on every CPU, starting now.

    Raises the kernel's ``OSError``; ``why`` explains it.
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
    """One sentence on why the kernel refused to count, and what to do about it."""
    if exc.errno in (errno.EACCES, errno.EPERM):
        paranoid = Tree(root).text("proc/sys/kernel/perf_event_paranoid") or "unknown"
        return (
            f"this user may not count {what}: kernel.perf_event_paranoid is {paranoid}; run"
            " as root, grant CAP_PERFMON, or lower it"
        )
    text = _REASONS.get(exc.errno or 0, f"the kernel refused to count {{what}}: {exc.strerror}")
    return text.format(what=what)


def pmus(root: str | Path = "/") -> tuple[Pmu, ...]:
    """The PMUs of this machine: one for each core type, or one for all cores."""
    listed = tuple(pmu for pmu, _ in _listed(root))
    return listed if len(listed) > 1 else (Pmu("cpu"),)


def _listed(root: str | Path) -> list[tuple[Pmu, frozenset[int]]]:
    """Every PMU that lists its pCPUs, with those pCPUs."""
    listed = []
    for path in sorted(Path(root, _DEVICES).glob("*/cpus")):
        try:
            pcpus = frozenset(cpulist.parse(files.text(path)))
            listed.append((Pmu(path.parent.name, int(files.text(path.with_name("type")))), pcpus))
        except (OSError, ValueError):
            continue
    return listed


def mediated(root: str | Path = "/") -> str | None:
    """Why the host must not count, if KVM hands the PMU to its guests; ``None`` if it does not.

    The kernel then refuses a counter on the host or, if the counter is opened first, the vCPU.
    """
    tree = Tree(root)
    for path in sorted(Path(root).glob("sys/module/kvm*/parameters/enable_mediated_pmu")):
        if tree.text(str(path.relative_to(root))) in ("Y", "1"):
            return (
                "KVM gives the hardware counters to its guests (mediated vPMU): load"
                f" {path.parts[-3]} with enable_mediated_pmu=0 to count on the host"
            )
    return None


class ThreadCounter:
    """Counts one event in this thread.

    A context manager. Raises ``CountersUnavailable`` if the event cannot be counted.
    """

    def __init__(self, event: Event = INSTRUCTIONS) -> None:
        try:
            self._fd = open_event(event, 0)
        except OSError as exc:
            raise CountersUnavailable(why(exc)) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self) -> float | None:
        """Events so far; ``None`` if the counter never ran."""
        value, enabled_ns, running_ns = struct.unpack("=QQQ", os.read(self._fd, 24))
        # Scale up for time in which the event was multiplexed out, as perf stat does.
        return value * enabled_ns / running_ns if running_ns else None


def on_pcpu(pcpu: int, root: str = "/", what: Event = INSTRUCTIONS) -> ThreadCounter:
    """A counter of instructions, or of ``what``, for this thread while it is on this pCPU."""
    return ThreadCounter(event_of(pcpu, root, what))


def event_of(pcpu: int, root: str = "/", what: Event = INSTRUCTIONS) -> Event:
    """The event that counts instructions, or ``what``, on this pCPU."""
    here = (pmu for pmu, pcpus in _listed(root) if pcpu in pcpus)
    return next(here, Pmu("cpu")).event(what)


def why_missing(pcpus: list[int], root: str = "/") -> str | None:
    """Why instructions cannot be counted on one of these pCPUs, ``None`` if they can."""
    try:
        for pcpu in pcpus:
            with on_pcpu(pcpu, root):
                pass
    except CountersUnavailable as exc:
        return str(exc)
    return None
