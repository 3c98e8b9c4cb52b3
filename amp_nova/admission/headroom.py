"""Headroom: what vCPUs may use beyond a booking of their own, without touching their neighbours'.

It serves soft limits, bursts, and vCPUs without a booking whose instance has one (``cpu.idle`` is
set per instance, so these cannot run in the idle class). Headroom is the unbooked part of the
pCPU on which a vCPU is counted. The kernel divides time equally between vCPUs of equal weight, so
a vCPU without a limit would take time from a neighbour that booked more than half of the pCPU.
"""

from collections.abc import Hashable, Iterable, Mapping

from amp_nova.admission.packing import Demand, Packing
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import Topology

LEAST_CORES = 0.003
"""What any vCPU may use: as much as the kernel gives SCHED_IDLE beside a busy task (weight 3 of
1024)."""


def most_cores(
    demands: Iterable[Demand], packing: Packing, topology: Topology, *, one_pcpu: bool = False
) -> tuple[Mapping[Hashable, float], Mapping[int, float]]:
    """The most that each of these packed demands may use, and what is then left of every pCPU.

    Both in cores. Demands are spread, the largest first, to where most is free on their core type,
    as the kernel would move them; with ``one_pcpu``, or with a core to themselves, they stay where
    they are packed. Demands on one pCPU divide what is free there in proportion to their need. If
    any booking is unplaced, all free capacity belongs to it and there is no headroom.
    """
    free = dict(packing.free_cores)
    found: list[tuple[Demand, float, int]] = []
    for demand in demands:
        pcpu = packing.placed.get(demand.key)
        core_type = None if pcpu is None else topology.type_of(pcpu)
        if pcpu is not None and core_type is not None:
            found.append((demand, packing.needs[demand.key], pcpu))
    homes: dict[Hashable, tuple[int, float]] = {}
    for demand, need, at in sorted(found, key=lambda f: (-f[1], str(f[0].key))):
        free[at] += need
        home = at
        core_type = topology.type_of(at)
        if not one_pcpu and core_type is not None and at not in packing.whole:
            usable = demand.allowed & topology.pcpus_of(core_type.name) - packing.whole
            there = sorted(usable & free.keys())
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
    """What vCPUs without a booking may use of ``left_cores``, in cores.

    ``vcpus``: the key of each, and its pCPUs. Each is counted on the pCPU that leaves it most, and
    those on one pCPU divide it evenly. All get at least ``LEAST_CORES``: a guest takes a vCPU that
    never runs for a fault.
    """
    homes: dict[Hashable, int] = {}
    count = dict.fromkeys(left_cores, 0)
    for key, pcpus in vcpus:
        there = sorted(pcpus & left_cores.keys())
        if there:
            homes[key] = max(there, key=lambda p: left_cores[p] / (count[p] + 1))
            count[homes[key]] += 1
    return {key: max(LEAST_CORES, left_cores[p] / count[p]) for key, p in homes.items()}
