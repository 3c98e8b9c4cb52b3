# SPDX-License-Identifier: Apache-2.0
"""Where cpusets let guests run.

Libvirt's definitions say nothing of ``AllowedCPUs=`` of a slice, of cpuset partitions, or of the
pCPUs that libvirt chose for ``placement='auto'``. The kernel refuses or cuts an affinity beyond
them.
"""

import contextlib
import os
from collections.abc import Iterable

from amp_nova.host.vcpu_threads import GROUP, Cpuset, VcpuThread, of_domain
from amp_nova.kernel import files
from amp_nova.kernel.cgroups import Mounts
from amp_nova.model import cpulist

_EFFECTIVE = {1: ("cpuset.effective_cpus", "cpuset.cpus"), 2: ("cpuset.cpus.effective",)}
"""The CPUs that a group and all groups above it leave to its threads; the last on old kernels."""


class GuestCpusets:
    """The cpusets of guests, and ``usable``: the pCPUs where guests that start may run.

    That is where the groups that the present guests share may run; ``None`` if no cpuset says.
    """

    def __init__(self, mounted: Mounts) -> None:
        self._mounted = mounted
        self._shared: set[tuple[str, int]] = set()
        self.usable: frozenset[int] | None = None
        self.follow()

    def follow(self) -> bool:
        """Read what may change at any time, ``usable``; returns whether it has."""
        before = self.usable
        found = [effective_cpus(*group) for group in self._shared or self._usual()]
        known = [pcpus for pcpus in found if pcpus is not None]
        complete = found and len(known) == len(found)
        self.usable = cpulist.shared(frozenset().union(*known)) if complete else None
        return self.usable != before

    def search(self) -> None:
        """Forget which groups guests share; ``add`` tells again."""
        self._shared = set()

    def add(self, threads: Iterable[VcpuThread]) -> None:
        """Take note of the group that the threads of a guest share with other guests."""
        self._shared |= {group for t in threads if (group := _shared_by(t.cpuset)) is not None}

    def of(self, thread: VcpuThread | None, *, own: bool) -> frozenset[int] | None:
        """The pCPUs of a vCPU's cpuset; ``None`` if no cpuset says.

        ``thread``: ``None`` while there is none; ``own``: whether that of its own group counts,
        which the agent sets when it writes through libvirt.
        """
        group = None if thread is None else thread.cpuset
        if not own:
            group = _shared_by(group)
        return self.usable if group is None else effective_cpus(*group)

    def _usual(self) -> list[tuple[str, int]]:
        """Where libvirt makes the groups of guests, with systemd or without."""
        version = 1 if "cpuset" in self._mounted else 2
        if (tree := self._mounted.get("cpuset", self._mounted.get(""))) is None:
            return []
        slices = (tree.path / name for name in ("machine.slice", "machine"))
        return [(str(next((s for s in slices if s.is_dir()), tree.path)), version)]


def _shared_by(cpuset: Cpuset) -> Cpuset:
    """The group above that of the domain; the thread's if libvirt made none for cpusets."""
    if cpuset is None or not GROUP.search(cpuset[0]):
        return cpuset
    return os.path.dirname(of_domain(cpuset[0])), cpuset[1]


def effective_cpus(folder: str, version: int) -> frozenset[int] | None:
    """The CPUs that the cpuset of a group leaves its threads; ``None`` if no file says which.

    A group without a cpuset of its own, or with an empty one, or that is gone, has the next above.
    """
    while len(folder) > 1:
        for name in _EFFECTIVE[version]:
            with contextlib.suppress(OSError, ValueError):
                if found := cpulist.parse(files.text(f"{folder}/{name}")):
                    return cpulist.shared(frozenset(found))
        folder = os.path.dirname(folder)
    return None
