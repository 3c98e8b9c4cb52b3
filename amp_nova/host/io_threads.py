"""The threads that do a domain's I/O: emulator, iothreads, vhost workers; all but its vCPUs."""

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from amp_nova.core.combined_usage import IoThread
from amp_nova.exceptions import ActuationFailed
from amp_nova.host.cgroup import path_of

_VCPU = re.compile(r"CPU \d+/")
_IOTHREAD = re.compile(r"IO iothread(\d+)")
_MIGRATION = re.compile(r"live_migration|multifd|mig/|return path|postcopy")
Homes = Callable[[int | None], frozenset[int]]
"""The pCPUs of an iothread by its number, or of the rest (``None``)."""


class _Thread:
    def __init__(self, tid: int, task: Path) -> None:
        self.tid = tid
        self.task = task
        self.kind = ""
        self.iothread: int | None = None
        self.looks = 0
        self.fd = os.open(task / "schedstat", os.O_RDONLY)

    def recognise(self, pid: int) -> None:
        """Tell by its name what it does; a vCPU has no kind."""
        comm = (self.task / "comm").read_text()
        number = _IOTHREAD.match(comm)
        self.iothread = int(number[1]) if number else None
        if _VCPU.match(comm):
            self.kind = ""
        elif number:
            self.kind = "iothread"
        elif comm.startswith(f"vhost-{pid}"):
            self.kind = "vhost"
        else:
            self.kind = "migration" if _MIGRATION.match(comm) else "emulator"

    def read(self, homes: Homes) -> IoThread:
        run_ns = int(os.pread(self.fd, 128, 0).split()[0])
        pcpus = frozenset(os.sched_getaffinity(self.tid))
        return IoThread(self.tid, self.kind, run_ns, pcpus, homes(self.iothread))


class IoThreads:
    """Those of one QEMU process; every method raises ``OSError`` once the process has gone."""

    def __init__(self, root: Path, pid: int, mounted: dict[str, Path]) -> None:
        self._proc = root / "proc"
        self._pid = pid
        self._mounted = mounted
        self._known: dict[int, _Thread] = {}

    def close(self) -> None:
        """Give all descriptors back."""
        for tid in list(self._known):
            self._drop(tid)

    def _drop(self, tid: int) -> None:
        with contextlib.suppress(OSError):
            os.close(self._known.pop(tid).fd)

    def _tasks(self) -> dict[int, Path]:
        own = self._proc / str(self._pid) / "task"
        found = {int(tid): own / tid for tid in os.listdir(own)}
        # Before Linux 6.4 vhost workers are the kernel's threads, in the group of their owner.
        with contextlib.suppress(FileNotFoundError):
            where = path_of((own.parent / "cgroup").read_text(), self._mounted)
            names = {1: "tasks", 2: "cgroup.threads"}
            text = (where[0] / names[where[1]]).read_text() if where else ""
            for tid in map(int, text.split()):
                found.setdefault(tid, self._proc / str(tid))
        return found

    def read(self, homes: Homes) -> tuple[IoThread, ...]:
        """All of them now."""
        tasks = self._tasks()
        for tid in self._known.keys() - tasks.keys():
            self._drop(tid)
        found = []
        for tid, task in tasks.items():
            try:
                thread = self._known.get(tid)
                if thread is None:
                    thread = self._known[tid] = _Thread(tid, task)
                if thread.looks < 2:  # a thread gets its name a moment after it began
                    thread.recognise(self._pid)
                    thread.looks += 1
                foreign = task.parent == self._proc and thread.kind != "vhost"
                if thread.kind and not foreign:
                    found.append(thread.read(homes))
            except (FileNotFoundError, ProcessLookupError):  # it ended since the listing
                if tid in self._known:
                    self._drop(tid)
        return tuple(found)

    def move(self, tid: int, pcpus: frozenset[int]) -> None:
        """Keep one thread on these pCPUs; ``ActuationFailed`` when the kernel does otherwise.

        Raises ``OSError`` when it cannot be moved; one that went, or is a vCPU's, is none of ours.
        """
        thread = self._known.get(tid)
        if thread is None:
            return
        try:
            thread.recognise(self._pid)
            if not thread.kind:
                return
            os.sched_setaffinity(tid, pcpus)
            now = frozenset(os.sched_getaffinity(tid))
        except (FileNotFoundError, ProcessLookupError):
            self._drop(tid)
            return
        if now != pcpus:
            raise ActuationFailed(
                f"its {thread.kind} thread is kept on pCPUs {sorted(now)}, not on the "
                f"{sorted(pcpus)} that were asked for: its cpuset does not hold them"
            )
