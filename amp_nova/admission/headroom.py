"""Room for those who may have more than they book: soft limits, bursts of banked time, and vCPUs
without a booking in an instance that has one, which cannot be made to yield by themselves.

What they may have beyond their booking is what nobody booked on the pCPU that they were counted on,
so that a neighbour's booking stands when all want all they can get. Between two vCPUs of equal
weight the kernel divides time equally: one without a limit would take it from a neighbour that
booked more than half of the pCPU.
"""

from collections.abc import Hashable, Iterable, Mapping

from amp_nova.admission.packing import Demand, Packing, need_cores
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import Topology

LEAST_CORES = 0.003
"""What any vCPU may have, whatever others booked: as much as the kernel gives SCHED_IDLE beside one
that is busy (a weight of 3 in 1024)."""


def most_cores(
    demands: Iterable[Demand], packing: Packing, topology: Topology, *, one_pcpu: bool = False
) -> tuple[Mapping[Hashable, float], Mapping[int, float]]:
    """The share of a pCPU that each of these may have at the most, of those that found room.

    The largest first, each goes where most is free on its core type, as the kernel would move it;
    with ``one_pcpu`` it is kept where it is. Several on one pCPU divide what is free there by what
    they need. Where a booking found no room, nothing is free: what is left is its own.
    Also what is left of every pCPU.
    """
    free = dict(packing.free_cores)
    found: list[tuple[Demand, float, int]] = []
    for demand in demands:
        pcpu = packing.placed.get(demand.key)
        core_type = None if pcpu is None else topology.type_of(pcpu)
        if pcpu is not None and core_type is not None:
            found.append((demand, need_cores(demand, core_type) or 0.0, pcpu))
    homes: dict[Hashable, tuple[int, float]] = {}
    for demand, need, at in sorted(found, key=lambda f: (-f[1], str(f[0].key))):
        free[at] += need
        home = at
        core_type = topology.type_of(at)
        if not one_pcpu and core_type is not None:
            there = sorted(demand.allowed & topology.pcpus_of(core_type.name) & free.keys())
            home = max(there, key=lambda p: free[p] + (TOLERANCE if p == at else 0.0))
        free[home] -= need
        homes[demand.key] = home, need
    needs: dict[int, float] = {}
    for home, need in homes.values():
        needs[home] = needs.get(home, 0.0) + need
    spare = {p: 0.0 if packing.unplaced else max(0.0, cores) for p, cores in free.items()}
    most = {key: need + spare[p] * need / needs[p] for key, (p, need) in homes.items()}
    return most, {p: 0.0 if p in needs else cores for p, cores in spare.items()}


def unbooked_cores(
    vcpus: Iterable[tuple[Hashable, frozenset[int]]], left_cores: Mapping[int, float]
) -> dict[Hashable, float]:
    """What vCPUs without a booking may have of ``left_cores``: key, and the pCPUs it may use.

    Each counts on the pCPU where that is most; those on one pCPU divide it evenly. A little is left
    to everybody: a guest whose vCPU never runs takes that for a fault.
    """
    homes: dict[Hashable, int] = {}
    count = dict.fromkeys(left_cores, 0)
    for key, pcpus in vcpus:
        there = sorted(pcpus & left_cores.keys())
        if there:
            homes[key] = max(there, key=lambda p: left_cores[p] / (count[p] + 1))
            count[homes[key]] += 1
    return {key: max(LEAST_CORES, left_cores[p] / count[p]) for key, p in homes.items()}
