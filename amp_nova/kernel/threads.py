# SPDX-License-Identifier: Apache-2.0
"""A thread in ``/proc``: what it ran, and where it may run."""

import contextlib
import errno
import os
from collections.abc import Collection

from amp_nova.kernel import files

GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH})
"""Errors of a file whose process or cgroup no longer exists, or has been replaced."""
THREADS_MAX = 1024
"""So many threads of a process are looked at: each takes 0.1 ms, and a guest's QEMU starts them."""


def listed(process: str, known: Collection[int]) -> list[int]:
    """The threads of a process, at most ``THREADS_MAX``: those known, then by ID.

    A QEMU starts its vCPUs before most others, and no later thread can displace them.
    """
    tids = map(int, os.listdir(f"{process}/task"))
    return sorted(tids, key=lambda tid: (tid not in known, tid))[:THREADS_MAX]


def stat(folder: str, field: int) -> str:
    """A field of a thread's or process's ``stat`` file, counted from 1 as in proc(5).

    ``ValueError`` if there is none. The second is its name, which may have spaces.
    """
    fields = files.line(f"{folder}/stat").rpartition(b")")[2].split(None, field - 2)
    if len(fields) < field - 2:
        raise ValueError(f"{folder}/stat has no field {field}")
    return fields[field - 3].decode(errors="replace")


def started(folder: str) -> str:
    """Start time of a thread or process, in clock ticks since boot."""
    return stat(folder, 22)


class Thread:
    """A thread. Every method raises ``OSError`` (``GONE``) once it has ended.

    ``task``: its folder in ``/proc``, text like all paths that are kept per vCPU: hundreds of
    ``Path`` objects would take most of a MiB. ``started``: its start time.
    """

    __slots__ = ("_schedstat", "started", "task", "tid")

    def __init__(self, task: str, since: str | None = None, *, keep: bool = True) -> None:
        """``since``: the start time of the thread that is meant; ``None``: any thread.

        ``keep``: keep a file open, so that ``schedstat`` takes a third of the time.
        """
        self.task = task
        self.tid = int(os.path.basename(task))
        self.started = started(task) if since is None else since
        self._schedstat = os.open(f"{task}/schedstat", os.O_RDONLY) if keep else None

    def close(self) -> None:
        if self._schedstat is not None:
            with contextlib.suppress(OSError):
                os.close(self._schedstat)

    def schedstat(self) -> bytes:
        """Time run, time waited (both in ns) and number of time slices, as the kernel writes it."""
        if self._schedstat is None:
            return files.line(f"{self.task}/schedstat")
        return os.pread(self._schedstat, 128, 0)

    def verify(self) -> None:
        """Raise ``OSError`` (``GONE``) unless the thread ID still belongs to the same thread.

        The descriptor fails once its thread has ended, even if the ID is in use again; the start
        time distinguishes two threads with the same ID.
        """
        self.schedstat()
        if started(self.task) != self.started:
            raise ProcessLookupError(errno.ESRCH, "the thread ID was reused")

    def pcpus(self) -> frozenset[int]:
        """The pCPUs that the thread may run on."""
        return frozenset(os.sched_getaffinity(self.tid))

    def set_affinity(self, pcpus: frozenset[int]) -> None:
        """Set the pCPUs that it may run on; the kernel keeps to those of its cpuset."""
        os.sched_setaffinity(self.tid, pcpus)
