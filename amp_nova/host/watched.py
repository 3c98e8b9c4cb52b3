"""A vCPU that is looked at as its quota ends, by whatever way it is limited."""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amp_nova.host.cgroup import VcpuGroup

NICE_MAX = 19
UNLIMITED_NS = 1_000_000_000
"""A vCPU whose limit was taken away is looked at again after this time."""


@dataclass(frozen=True, slots=True)
class Where:
    """How to get at a vCPU: its thread, and its CPU cgroup with the version.

    ``ips``: what it books, if that is to be kept to the instruction; ``instructions`` then counts
    them, and answers ``None`` while nothing does.
    """

    tid: int
    task: Path
    group: Path
    version: int
    ips: float | None = None
    instructions: Callable[[], int | None] | None = None


class Watched:
    """One vCPU; every method raises ``OSError`` once it has gone. ``due_ns``: when to look next."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.due_ns = time.monotonic_ns()
        self.group = VcpuGroup(where.group, where.version)
        try:
            self._schedstat = os.open(where.task / "schedstat", os.O_RDONLY)
        except OSError:
            self.group.close()
            raise

    def close(self) -> None:
        """Give the descriptors back."""
        self.group.close()
        with contextlib.suppress(OSError):
            os.close(self._schedstat)

    def charge(self) -> int:
        """Have the kernel charge it for its CPU time; its CPU time, in nanoseconds.

        The kernel brings the CPU time of a thread that runs up to date when its nice value is set
        anew, and looks then whether the quota is used up. In a vCPU's cgroup, where it is alone,
        its nice value decides nothing; it is put back at once.
        """
        tid = self.where.tid
        nice = os.getpriority(os.PRIO_PROCESS, tid)
        os.setpriority(os.PRIO_PROCESS, tid, nice + 1 if nice < NICE_MAX else nice - 1)
        os.setpriority(os.PRIO_PROCESS, tid, nice)
        return int(os.pread(self._schedstat, 128, 0).split(None, 1)[0])
