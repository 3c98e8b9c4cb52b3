# SPDX-License-Identifier: Apache-2.0
"""The vCPU threads of one QEMU process: counters, affinity and limit of each."""

import contextlib
import os
import re
import time
from collections.abc import Collection
from pathlib import Path

from msgspec import structs

from amp_nova.exceptions import CountersNever
from amp_nova.host.counters.sources import Counter, Counters, VcpuCounts
from amp_nova.kernel import files
from amp_nova.kernel.cgroups import DomainGroup, Mounts, VcpuGroup, limits_above, path_of
from amp_nova.kernel.threads import Thread, listed, started, stat
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.cpulist import shared
from amp_nova.model.observation import TAMPERED, VcpuReading, VcpuSample

RUN_PATH = "run/libvirt/qemu"
"""Where libvirt has the pid files of its QEMU processes, below ``[topology] root``."""
_COMM = re.compile(r"CPU (\d+)/")
"""Name of a vCPU thread, with its index, in a QEMU that libvirt started."""
GROUP = re.compile(r"/vcpu(\d+)$")
"""End of the CPU cgroup that libvirt makes for a vCPU."""
_TAMPERED = (
    f"{TAMPERED}: its cgroup holds {{}} threads, where libvirt puts one. The limit applies to all "
    "of them; CPU time is that of one, and instructions are not counted"
)
REALTIME = frozenset({"1", "2", "6"})
"""Real-time policies in ``stat``: SCHED_FIFO, SCHED_RR and SCHED_DEADLINE (sched(7))."""
Cpuset = tuple[str, int] | None
"""Folder and version of the cgroup whose cpuset a thread has; ``None``: none is mounted."""


class VcpuThread(Thread):
    """One vCPU's thread. Every method raises ``OSError`` once the thread has ended."""

    __slots__ = ("_last", "_pcpus", "_sampled", "counts", "cpuset", "group", "index")

    def __init__(
        self, index: int, task: str, group: VcpuGroup, cpuset: Cpuset, counts: VcpuCounts
    ) -> None:
        super().__init__(task)
        self.index = index
        self.group = group
        self.cpuset = cpuset
        self.counts = counts
        self._pcpus: frozenset[int] = frozenset()
        self._last: tuple[bytes, VcpuReading] | None = None
        self._sampled: tuple[bytes, VcpuSample] | None = None

    def close(self) -> None:
        super().close()
        self.group.close()
        self.counts.end()

    def read(self, allowed: frozenset[int], *, closely: bool = True) -> VcpuReading:
        """Counters and limits at this moment.

        Unless ``closely``, limit and affinity of a vCPU that has not run since the last reading
        are not read again: most vCPUs sleep most of the time, and a limit matters only to one that
        runs. A burst, which normally nobody sets, is read only if ``closely``.
        """
        raw = self.schedstat()
        last = self._last[1] if self._last is not None and self._last[0] == raw else None
        if last is not None and last.allowed is allowed and not closely:
            return last
        if closely:
            self.group.read_burst()
        if last is not None:
            limit, pcpus = self.group.bandwidth(), self.pcpus()
            reading = structs.replace(last, bandwidth=limit, pcpus=pcpus, allowed=allowed)
        else:
            run, wait, _ = raw.split()
            reading = VcpuReading(
                self.index,
                int(run),
                int(wait),
                self.group.throttled_ns(),
                self.group.bandwidth(),
                self.pcpus(),
                allowed,
                counts=self.counts.read(),
                uncounted=self.counts.failure,
            )
        self._last = (raw, reading)
        return reading

    def sample(self) -> VcpuSample | None:
        """Its CPU time and instructions; ``None`` while nothing counts the latter."""
        raw, last = self.schedstat(), self._sampled
        if last is not None and raw == last[0]:  # it slept: its counters have not moved
            return structs.replace(last[1], time_ns=time.monotonic_ns())
        counts = self.counts.read()
        if counts is None:
            self._sampled = None
            return None
        run, wait, _ = raw.split()
        # Read with the instructions, if possible: schedstat lags by up to a timer tick (4 ms), and
        # a vCPU with a small booking runs no longer than that at a time.
        run_ns = int(run) if counts.run_ns is None else counts.run_ns
        sample = VcpuSample(time.monotonic_ns(), run_ns, int(wait), counts.instructions)
        self._sampled = (raw, sample)
        return sample

    def pcpus(self) -> frozenset[int]:
        """The pCPUs the thread may run on; the same object as long as nothing changes."""
        now = os.sched_getaffinity(self.tid)
        if now != self._pcpus:
            self._pcpus = shared(frozenset(now))
        return self._pcpus

    def last_pcpu(self) -> int:
        """The pCPU on which the thread last ran (``processor`` in ``/proc/PID/stat``, proc(5))."""
        return int(stat(self.task, 39))

    def realtime(self) -> bool:
        """Whether a real-time class schedules it (``policy``)."""
        return stat(self.task, 41) in REALTIME

    def written(self) -> None:
        """Make the next reading read limit and affinity again, as one is about to be written."""
        self._last = None


def incarnation(root: Path, pid: int) -> str:
    """The incarnation of a process: PID and start time."""
    return f"{pid}:{started(str(root / f'proc/{pid}'))}"


def process_id(run_path: Path, name: str) -> int:
    """The QEMU process of a domain, from libvirt's pid file; ``ValueError`` if it names none."""
    path = run_path / f"{name}.pid"
    text = files.text(path).strip()
    if not text.isdecimal():
        raise ValueError(f"{path} holds no process ID")
    return int(text)


SEARCHES_MAX = 5
"""So often in succession, libvirt is expected to move a new vCPU thread to its cgroup."""
LINKS_EMPTY = 2
"""Link count of a directory without subdirectories, or of one that does not count them."""
ByIndex = dict[int, tuple[int, str, int, int, Cpuset]]
"""Thread ID, CPU cgroup folder, cgroup version, the group's number of threads, and the cpuset, by
vCPU index."""


def find(
    process: str, mounted: Mounts, known: Collection[int] = ()
) -> tuple[ByIndex, frozenset[int]]:
    """The vCPUs of a process, and those left out; ``OSError`` if the process has ended.

    ``process``: its folder in ``/proc``; ``known``: as in ``listed``. A vCPU is the thread in the
    cgroup that libvirt made for it: QEMU can rename its threads, but not move them. A vCPU without
    a cgroup of its own is left out: a limit would affect other threads too.
    """
    groups: dict[int, tuple[str, int, Cpuset, list[tuple[bool, int]]]] = {}
    groupless = set()
    for tid in listed(process, known):
        task = Path(process, "task", str(tid))
        try:
            named = _COMM.match(files.text(task / "comm"))
            text = files.text(task / "cgroup", files.PATHS)
            where, cpuset = path_of(text, mounted), path_of(text, mounted, "cpuset")
        except (FileNotFoundError, ProcessLookupError):  # a thread that ended since the listing
            continue
        if where is not None and (match := GROUP.search(where[0])):
            index = int(match[1])
            other = named is None or int(named[1]) != index
            groups.setdefault(index, (*where, cpuset, []))[3].append((other, tid))
        elif named is not None:
            groupless.add(int(named[1]))
    vcpus = {
        index: (min(tids)[1], path, version, len(tids), cpuset)
        for index, (path, version, cpuset, tids) in groups.items()
    }
    return vcpus, frozenset(groupless - vcpus.keys())


def of_domain(vcpu: str) -> str:
    """The folder of a domain's cgroup, from that of a vCPU's.

    libvirt has a level between them in version 2.
    """
    return os.path.dirname(vcpu).removesuffix("/libvirt")


class VcpuThreads:
    """All vCPU threads of one QEMU process, which may come and go."""

    def __init__(
        self,
        root: Path,
        pid: int,
        mounted: Mounts,
        counters: Counters,
        emulated: bool = False,
    ) -> None:
        """``emulated``: whether the domain's definition says so, which QEMU cannot change."""
        self._emulated = emulated
        self.incarnation = incarnation(root, pid)
        self.by_index: dict[int, VcpuThread] = {}
        self.domain: DomainGroup | None = None
        self._searches = SEARCHES_MAX
        self._last_search: tuple[ByIndex, frozenset[int]] = ({}, frozenset())
        self._links = 0
        self._process = str(root / f"proc/{pid}")
        self._mounted = mounted
        self._counters = counters
        try:
            self.rescan()
        except BaseException:
            self.close()
            raise

    def ceilings(self) -> tuple[tuple[str, Bandwidth], ...]:
        """The limits of the groups above those of its vCPUs (``limits_above``)."""
        group = next((thread.group for thread in self.by_index.values()), None)
        if group is None:
            return ()
        mount = self._mounted["cpu" if group.version == 1 else ""]
        return limits_above(group.path, group.version, str(mount.path))

    @property
    def pid(self) -> int:
        """The process."""
        return int(self.incarnation.partition(":")[0])

    @property
    def incomplete(self) -> bool:
        """Whether another search may find more."""
        return self._searches > 0

    @property
    def groupless(self) -> frozenset[int]:
        """vCPUs without a cgroup of their own, which are not in ``by_index``."""
        return self._last_search[1]

    @property
    def process(self) -> tuple[str, str]:
        """Folder in ``/proc`` and start time of the process."""
        return self._process, self.incarnation.partition(":")[2]

    def sandboxed(self) -> bool:
        """Whether the process has a filter of system calls (seccomp(2)): it cannot take it off."""
        try:
            return "\nSeccomp:\t0\n" not in files.text(f"{self._process}/status")
        except OSError:  # it has gone, which the search for its threads finds out
            return True

    def follow(self) -> None:
        """Search again if the number of threads changed since the last search, or vCPUs lack.

        The link count of the task directory costs a fraction of ``rescan``.
        """
        links = self._count_links()
        if self.incomplete or self.groupless or links != self._links or links <= LINKS_EMPTY:
            self.rescan()

    def _count_links(self) -> int:
        return os.stat(f"{self._process}/task").st_nlink

    def rescan(self) -> None:
        """Search for vCPUs that were plugged, unplugged or moved to another group."""
        self._links = self._count_links()
        known = {thread.tid for thread in self.by_index.values()}
        (before, _) = self._last_search
        self._last_search = vcpus, _ = find(self._process, self._mounted, known)
        for index in list(self.by_index):
            if vcpus.get(index) != before.get(index):
                self.drop(index)
        for index, (tid, path, version, threads, cpuset) in vcpus.items():
            if index not in self.by_index:
                group, counts = VcpuGroup(path, version), self._counts(index, tid, threads)
                task = f"{self._process}/task/{tid}"
                try:
                    self.by_index[index] = VcpuThread(index, task, group, cpuset, counts)
                except OSError:
                    group.close()
                    raise
        self.by_index = dict(sorted(self.by_index.items()))
        if self.domain is None and self.by_index:
            group = next(iter(self.by_index.values())).group
            with contextlib.suppress(FileNotFoundError):  # a cgroup without weights
                self.domain = DomainGroup(of_domain(group.path))
        # libvirt moves a new thread to its cgroup a moment after it starts. But QEMU may give any
        # thread the name of a vCPU, which must not make every cycle search.
        left = SEARCHES_MAX if vcpus.keys() - before.keys() else max(0, self._searches - 1)
        self._searches = left if self.groupless else 0

    def _counts(self, index: int, tid: int, threads: int) -> VcpuCounts:
        def counter() -> Counter:
            if threads > 1:
                raise CountersNever(_TAMPERED.format(threads))
            return self._counters.open(self.pid, tid, index, self._emulated)

        return VcpuCounts(counter, self._counters.retry_s)

    def drop(self, index: int) -> None:
        """Forget one vCPU and close its descriptors."""
        self.by_index.pop(index).close()
        self._searches = max(1, self._searches)

    def close(self) -> None:
        for thread in self.by_index.values():
            thread.close()
        self.by_index = {}
        if self.domain is not None:
            self.domain.close()
