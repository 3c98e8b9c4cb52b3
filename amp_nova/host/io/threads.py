"""The threads that do a domain's I/O: emulator, iothreads, vhost workers; all but its vCPUs."""

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from amp_nova.exceptions import ActuationFailed
from amp_nova.host.cgroup.groups import path_of
from amp_nova.profiling.io_overlap import IoThread

_VCPU = re.compile(r"CPU \d+/")
_IOTHREAD = re.compile(r"IO iothread(\d+)")
_MIGRATION = re.compile(r"live_migration|multifd|mig/|return path|postcopy")
Homes = Callable[[int | None], frozenset[int]]
"""The pCPUs of an iothread by its number, or of the rest (``None``)."""
THOROUGH_EVERY = 24
"""Looks until threads are listed anew although as many are there as before."""
_LINKS_LEAST = 2
"""What a folder of threads that has no entry, or does not count them by its links, has."""


class _Thread:
    def __init__(self, tid: int, task: Path, *, foreign: bool) -> None:
        """``foreign``: it is none of QEMU's own."""
        self.tid = tid
        self.task = task
        self.foreign = foreign
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
        self._folder = os.open(self._proc / str(pid) / "task", os.O_RDONLY)
        self._links = 0
        self._looks = pid % THOROUGH_EVERY  # not all domains at the same time

    def close(self) -> None:
        """Give all descriptors back."""
        for tid in list(self._known):
            self._drop(tid)
        with contextlib.suppress(OSError):
            os.close(self._folder)

    def _drop(self, tid: int) -> None:
        with contextlib.suppress(OSError):
            os.close(self._known.pop(tid).fd)
        self._links = 0

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

    def settled(self) -> bool:
        """Whether ``rescan`` would find the same threads, as far as their number tells.

        It is counted by the links of their folder, which costs a fraction of listing it.
        """
        self._looks += 1
        links = os.stat(self._folder).st_nlink
        return bool(self._looks % THOROUGH_EVERY) and links == self._links > _LINKS_LEAST

    def rescan(self) -> None:
        """Look for threads that came or went."""
        links = os.stat(self._folder).st_nlink
        tasks = self._tasks()
        for tid in self._known.keys() - tasks.keys():
            self._drop(tid)
        named = True
        for tid, task in tasks.items():
            try:
                thread = self._known.get(tid)
                if thread is None:
                    foreign = task.parent == self._proc
                    thread = self._known[tid] = _Thread(tid, task, foreign=foreign)
                if thread.looks < 2:  # a thread gets its name a moment after it began
                    thread.recognise(self._pid)
                    thread.looks += 1
                    named = named and thread.looks == 2
            except (FileNotFoundError, ProcessLookupError):  # it ended since the listing
                if tid in self._known:
                    self._drop(tid)
        self._links = links if named else 0

    def read(self, homes: Homes) -> tuple[IoThread, ...]:
        """All of them now."""
        found = []
        for tid, thread in list(self._known.items()):
            if thread.kind == "vhost" or (thread.kind and not thread.foreign):
                try:
                    found.append(thread.read(homes))
                except (FileNotFoundError, ProcessLookupError):  # it ended since the last look
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
