# SPDX-License-Identifier: Apache-2.0
"""Headroom: what vCPUs may use beyond their own bookings without taking from their neighbours.

It serves soft limits, bursts, and vCPUs without a booking whose instance has one (the CPU weight
is that of the instance, so these have precedence over best effort). Headroom is the unbooked part
of the pCPU that a vCPU is assigned to. The kernel divides time equally between vCPUs of equal
weight, so a vCPU without a limit would take time from a neighbour that booked more than half of the
pCPU.
"""

from collections.abc import Hashable, Iterable, Mapping

from amp_nova.admission.packing import Demand, Packing
from amp_nova.hardware.effective_speed import slowed_by_siblings
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.cpu_weight import FLOOR_CORES
from amp_nova.model.topology import CoreType, Topology


def most_cores(
    demands: Iterable[Demand], packing: Packing, topology: Topology, *, one_pcpu: bool = False
) -> tuple[Mapping[Hashable, float], Mapping[int, float]]:
    """The most that each of these packed demands may use, and what is then left of every pCPU.

    Both in cores. Demands are spread, largest first, over the pCPUs of their core type, each to
    the one with the most free capacity, as the kernel would balance them; with ``one_pcpu``, or
    with siblings that may slow them down, they stay where they are packed. Demands on one pCPU
    divide what is free there in proportion to their need. If a booking is unplaced, all free
    capacity is kept for it, and there is no headroom.
    """
    free = dict(packing.free_cores)
    placed: list[tuple[Demand, float, int]] = []
    for demand in demands:
        pcpu = packing.placed.get(demand.key)
        core_type = None if pcpu is None else topology.type_of(pcpu)
        if pcpu is not None and core_type is not None:
            placed.append((demand, packing.needs[demand.key], pcpu))
    homes: dict[Hashable, tuple[int, float]] = {}
    for demand, need, at in sorted(placed, key=lambda f: (-f[1], str(f[0].key))):
        free[at] += need
        home = at
        core_type = topology.type_of(at)
        stays = one_pcpu or at in packing.whole
        if core_type is not None and not stays and not slowed_by_siblings(core_type):
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
    """What each vCPU without a booking may use of ``left_cores``, in cores.

    ``vcpus``: the key and the allowed pCPUs of each. Each is assigned to the pCPU that gives it the
    most, and vCPUs on one pCPU divide it evenly. Each gets at least ``FLOOR_CORES``: to its guest,
    a vCPU that never runs is a fault.
    """
    homes: dict[Hashable, int] = {}
    count = dict.fromkeys(left_cores, 0)
    for key, pcpus in vcpus:
        there = sorted(pcpus & left_cores.keys())
        if there:
            homes[key] = max(there, key=lambda p: left_cores[p] / (count[p] + 1))
            count[homes[key]] += 1
    return {key: max(FLOOR_CORES, left_cores[p] / count[p]) for key, p in homes.items()}


def best_type(
    now: CoreType | None, pcpus: frozenset[int], shares: Mapping[str, float], topology: Topology
) -> CoreType:
    """Where a vCPU shall use headroom: on its present core type, or on the one with the most.

    ``shares``: the headroom by core type, in cores; ``pcpus``: those it may use.
    """
    there = [
        t for t in topology.core_types if t.name in shares and pcpus & topology.pcpus_of(t.name)
    ]
    if now in there and shares[now.name] > FLOOR_CORES:
        return now
    return max(there, key=lambda t: shares[t.name] * (t.coefficient or 1.0))
