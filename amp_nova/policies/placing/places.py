# SPDX-License-Identifier: Apache-2.0
"""Places: how many vCPUs each pCPU takes, and which core types a vCPU may use.

Each vCPU gets one place. A pCPU offers places in proportion to the time that bookings leave it.
With fewer vCPUs than pCPUs, the fastest pCPUs offer them. Hardware threads of idle cores come
first: a second busy thread slows the first one down, and so may add less to the host than an idle
slower core.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from amp_nova.hardware.effective_speed import effective_speed, slowing_siblings
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType, Topology
from amp_nova.policies.api import HostView, VcpuView

_SHARE_MIN_RATIO = 0.6
"""An empty faster pCPU comes before a slower one whose next place gets more time, if the place on
the faster pCPU gets at least this part of it."""
_NOISE = 1e-9


@dataclass(slots=True)
class _Places:
    """The next places on the pCPUs of a core type, as a heap.

    Entries: minus the time that the next place gets, whether a sibling is taken, id, vCPUs so far.
    """

    core_type: CoreType
    heap: list[tuple[float, bool, int, int]]

    def worth(self) -> float:
        """What the next place adds to the host, in reference cores, while its pCPU is empty."""
        time, beside, *_ = self.heap[0]
        alone = effective_speed(self.core_type) or 1.0
        shared = effective_speed(self.core_type, 1.0) or 1.0
        return -time * (2.0 * shared - alone if beside else alone)

    def refresh(self, taken: Counter[int], siblings: Mapping[int, tuple[int, ...]]) -> None:
        """Bring the first entry up to date with the siblings that were taken since."""
        while not self.heap[0][1]:
            time, _, pcpu, vcpus = self.heap[0]
            if not any(taken[s] for s in siblings.get(pcpu, ())):
                break
            heapq.heapreplace(self.heap, (time, True, pcpu, vcpus))


def vcpus_per_pcpu(view: HostView, count: int) -> Counter[int]:
    """How many of ``count`` vCPUs each pCPU takes; not to be changed."""
    free = [max(0.0, view.free_cores.get(p.id, 0.0)) for p in view.topology.pcpus]
    return _vcpus_per_pcpu(view.topology, tuple(free), count)


@lru_cache(maxsize=4)  # called several times in a decision
def _vcpus_per_pcpu(topology: Topology, free_cores: tuple[float, ...], count: int) -> Counter[int]:
    types: list[_Places] = []
    siblings = slowing_siblings(topology)
    free_of = [(p.id, free) for p, free in zip(topology.pcpus, free_cores, strict=True)]
    for core_type in topology.core_types:
        ids = topology.pcpus_of(core_type.name)
        heap = [(-cores, False, p, 0) for p, cores in free_of if p in ids]
        heapq.heapify(heap)
        if heap:
            types.append(_Places(core_type, heap))
    taken: Counter[int] = Counter()
    for _ in range(count):
        for places in types if siblings else ():
            places.refresh(taken, siblings)
        heap = _next(types).heap
        time, beside, pcpu, vcpus = heap[0]
        free = -time * (vcpus + 1)
        heapq.heapreplace(heap, (-free / (vcpus + 2), beside, pcpu, vcpus + 1))
        taken[pcpu] += 1
    return taken


def _next(types: Sequence[_Places]) -> _Places:
    """The core type of the next place: the fastest with an empty pCPU, else that with most time.

    An empty pCPU whose sibling is taken gives way to an empty one that adds more to the host.
    If the vCPUs do not divide evenly, the slowest pCPUs get the extra ones, so that a place on a
    faster type is always the better place. Claims depend on that.
    """
    most = -min([places.heap[0][0] for places in types])
    empty = [
        places
        for places in reversed(types)
        if places.heap[0][3] == 0 and -places.heap[0][0] >= _SHARE_MIN_RATIO * most
    ]
    if empty and empty[0].heap[0][1]:
        return max(empty, key=_Places.worth)
    if empty:
        return empty[0]
    return next(places for places in types if -places.heap[0][0] >= most - _NOISE)


def usable_types(view: HostView, vcpus: Iterable[VcpuView]) -> dict[VcpuKey, frozenset[int]]:
    """Positions of the core types that each vCPU may use, slowest type first."""
    pcpus = [view.topology.pcpus_of(t.name) for t in view.topology.core_types]
    types_of: dict[frozenset[int], frozenset[int]] = {}
    usable = {}
    for vcpu in vcpus:
        if (types := types_of.get(vcpu.allowed)) is None:
            types = frozenset(at for at, ids in enumerate(pcpus) if ids & vcpu.allowed)
            types_of[vcpu.allowed] = types
        usable[vcpu.key] = types
    return usable
