# SPDX-License-Identifier: Apache-2.0
"""The threads that do a domain's I/O: emulator, iothreads and vhost workers, but not its vCPUs."""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from amp_nova.exceptions import ActuationFailed
from amp_nova.host.vcpu_threads import incarnation
from amp_nova.kernel import files
from amp_nova.kernel.cgroups import Mounts, path_of
from amp_nova.kernel.threads import THREADS_MAX, Thread, listed
from amp_nova.model.cpulist import shared
from amp_nova.profiling.io_overlap import IoThread

_VCPU = re.compile(r"CPU \d+/")
_IOTHREAD = re.compile(r"IO iothread(\d+)")
_MIGRATION = re.compile(r"live_migration|multifd|mig/|return path|postcopy")
Homes = Callable[[int | None], frozenset[int]]
"""The pCPUs allowed to the iothread of a number, or to any other thread (``None``)."""


class _IoThread(Thread):
    __slots__ = ("checks", "foreign", "iothread", "kind")

    def __init__(self, task: str, *, foreign: bool) -> None:
        """``foreign``: it is not a thread of the QEMU process."""
        super().__init__(task, keep=False)
        self.foreign = foreign
        self.kind = ""
        self.iothread: int | None = None
        self.checks = 0

    def recognise(self, pid: int) -> None:
        """Set the kind from the thread's name; a vCPU thread's kind is empty."""
        comm = files.text(f"{self.task}/comm")
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
        run_ns, *_ = self.schedstat().split()
        pcpus = shared(self.pcpus())
        return IoThread(self.tid, self.kind, int(run_ns), pcpus, homes(self.iothread))


class IoThreads:
    """The threads of one QEMU process; methods raise ``OSError`` once the process is gone."""

    def __init__(self, root: Path, pid: int, mounted: Mounts) -> None:
        self.incarnation = incarnation(root, pid)
        self._proc = str(root / "proc")
        self._process = f"{self._proc}/{pid}"
        self._pid = pid
        self._mounted = mounted
        self._threads: dict[int, _IoThread] = {}

    def _tasks(self) -> dict[int, str]:
        own = f"{self._process}/task"
        tasks = {tid: f"{own}/{tid}" for tid in listed(self._process, self._threads)}
        # Before Linux 6.4, vhost workers are kernel threads in the cgroup of their owner.
        with contextlib.suppress(FileNotFoundError):
            where = path_of(files.text(f"{self._process}/cgroup", files.PATHS), self._mounted)
            names = {1: "tasks", 2: "cgroup.threads"}
            text = files.text(f"{where[0]}/{names[where[1]]}") if where else ""
            for tid in map(int, text.split()[: THREADS_MAX - len(tasks)]):
                tasks.setdefault(tid, f"{self._proc}/{tid}")
        return tasks

    def read(self, homes: Homes) -> tuple[IoThread, ...]:
        """CPU time and affinity of all threads that run now."""
        tasks = self._tasks()
        self._threads = {tid: each for tid, each in self._threads.items() if tid in tasks}
        threads = []
        for tid, task in tasks.items():
            try:
                thread = self._threads.get(tid)
                if thread is None:
                    foreign = not task.startswith(f"{self._process}/")
                    thread = self._threads[tid] = _IoThread(task, foreign=foreign)
                if thread.checks < 2:  # a thread gets its name a moment after it starts
                    thread.recognise(self._pid)
                    thread.checks += 1
                if thread.kind == "vhost" or (thread.kind and not thread.foreign):
                    threads.append(thread.read(homes))
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                self._threads.pop(tid, None)
        return tuple(threads)

    def move(self, tid: int, pcpus: frozenset[int]) -> None:
        """Set the affinity of one thread; a thread that is gone or runs a vCPU is ignored.

        Raises ``OSError`` if the kernel refuses, ``ActuationFailed`` if it sets another affinity.
        """
        thread = self._threads.get(tid)
        if thread is None:
            return
        try:
            thread.recognise(self._pid)
            if not thread.kind:
                return
            thread.verify()
            thread.set_affinity(pcpus)
            thread.verify()
            now = thread.pcpus()
        except (FileNotFoundError, ProcessLookupError):
            del self._threads[tid]
            return
        if now != pcpus:
            raise ActuationFailed(
                f"its {thread.kind} thread runs on pCPUs {sorted(now)} instead of "
                f"{sorted(pcpus)}: extend its cpuset cgroup"
            )
