"""Counts the instructions that child processes retire, where the machine has a counter."""

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path
from typing import Self

from amp_nova.core import cpulist
from amp_nova.exceptions import CountersUnavailable

TYPE_HARDWARE = 0
INSTRUCTIONS = 1
TYPE_SOFTWARE = 1
TASK_CLOCK = 1
"""Nanoseconds on a CPU: a counter that every kernel has, for trying out the rest."""

_SYSCALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}
_ATTR_SIZE = 64  # PERF_ATTR_SIZE_VER0, which every kernel understands
_INHERIT = 1 << 1
_EXCLUDE_HYPERVISOR = 1 << 6
_TIME_ENABLED_AND_RUNNING = 1 | 2
_CLOSE_ON_EXEC = 8
_REASONS = {
    errno.ENOENT: "this machine has no hardware counter for instructions",
    errno.EOPNOTSUPP: "this machine has no hardware counter for instructions",
    errno.ENODEV: "this machine has no hardware counter for instructions",
    errno.ENOSYS: "this kernel has no performance counters",
    errno.EACCES: "this user may not count; run as root or lower kernel.perf_event_paranoid",
    errno.EPERM: "this user may not count; run as root or lower kernel.perf_event_paranoid",
}


class ChildCounter:
    """One event of the children started while it is open; the caller's own share is negligible."""

    def __init__(self, event_type: int = TYPE_HARDWARE, config: int = INSTRUCTIONS) -> None:
        number = _SYSCALL.get(platform.machine())
        if number is None:
            raise CountersUnavailable(f"counting is not known for a {platform.machine()} machine")
        attr = struct.pack(
            "=IIQQQQQ16x",
            *(event_type, _ATTR_SIZE, config, 0, 0, _TIME_ENABLED_AND_RUNNING),
            _INHERIT | _EXCLUDE_HYPERVISOR,
        )
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.syscall(
            ctypes.c_long(number), ctypes.c_char_p(attr), 0, -1, -1, ctypes.c_ulong(_CLOSE_ON_EXEC)
        )
        if self._fd < 0:
            code = ctypes.get_errno()
            reason = _REASONS.get(code, f"the kernel refused to count: {os.strerror(code)}")
            raise CountersUnavailable(reason)

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
    """The event that counts instructions on this pCPU.

    On a hybrid machine every core type has counters of its own, and a plain hardware event counts
    on one type only: the type of the counters goes into the upper half of the event.
    """
    return _pmu_type(pcpu, root) << 32 | INSTRUCTIONS


def why_missing(pcpus: list[int], root: str = "/") -> str | None:
    """Why instructions cannot be counted on one of these pCPUs, ``None`` when they can."""
    try:
        for pcpu in pcpus:
            with on_pcpu(pcpu, root):
                pass
    except CountersUnavailable as exc:
        return str(exc)
    return None


def _pmu_type(pcpu: int, root: str) -> int:
    for path in sorted(Path(root, "sys/bus/event_source/devices").glob("*/cpus")):
        try:
            if pcpu in cpulist.parse(path.read_text()):
                return int(path.with_name("type").read_text())
        except (OSError, ValueError):
            continue
    return 0
