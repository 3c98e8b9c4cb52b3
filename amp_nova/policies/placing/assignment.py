"""Assignment: the core type that each vCPU has for one interval.

A policy says how strongly each vCPU claims each core type. This module turns claims into pCPUs:

1. A core type takes as many vCPUs as ``places`` says. From the fastest type down, the strongest
   claims win; a vCPU that loses on all others is on the slowest type that it may use. An incumbent,
   a vCPU that is on the type already, loses only to a claim that is stronger by more than a
   threshold of its own, and only while the view's ``moves_max`` allows it.
2. Where vCPUs sleep part of the time, a faster type with time to spare takes more of them from a
   crowded slower one.
3. Where vCPUs outnumber the cores but use little of their time, those that sleep may use every
   type: to wait for one while another idles would cost them more than the faster type gains.

A vCPU may use all pCPUs of its type that its flavor allows. Which one, and when it changes, is
Linux's decision: the kernel knows caches, NUMA nodes and hardware threads, and sees at once when a
vCPU sleeps, so no pCPU of the type idles while a vCPU waits for another one.

Cost: ``N log N`` for N vCPUs.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView, Places, VcpuView
from amp_nova.policies.placing.core_shares import SharedCapacity

Claims = Mapping[VcpuKey, Sequence[float]]
"""How strongly each vCPU claims each core type, slowest type first, in the policy's own unit."""
GAIN_MIN_CORES = 0.1
"""A vCPU moves to a type with time to spare only if that makes up for this much waiting."""
CROWDED_RATIO = 0.7
"""Part of a core type's time in use from which vCPUs that sleep often wait for each other: with
random arrivals (M/M/1) they then wait twice as long as they run."""
SLEEPS_RATIO = 0.9
"""A vCPU that wants less than this share of the time sleeps between pieces of work."""
_NOISE = 1e-9


@dataclass(slots=True)
class MoveAllowance:
    """How many more vCPUs may change their core type in this decision."""

    left: float

    def take(self, moves: int) -> bool:
        """Use up ``moves`` if that many are left; returns whether they were."""
        if moves > self.left:
            return False
        self.left -= moves
        return True


def assign(
    view: HostView,
    shared: SharedCapacity,
    claims: Claims,
    thresholds: Mapping[VcpuKey, float] = MappingProxyType({}),
) -> Places:
    """The pCPUs of every active vCPU.

    ``thresholds``: by how much a claim must exceed this vCPU's to take its place; otherwise 0.
    """
    usable, count = shared.types, len(view.topology.core_types)
    pcpus = [view.topology.pcpus_of(t.name) for t in view.topology.core_types]
    now = {v.key: view.topology.position(v.pcpus) for v in shared.vcpus}
    allowance = MoveAllowance(float("inf") if view.moves_max is None else view.moves_max)
    position: dict[VcpuKey, int] = {}
    for at in reversed(range(count)):
        able = [k for k in now if k not in position and at in usable[k]]
        stay = [k for k in able if at == min(usable[k])]
        others = {k: claims[k][at] for k in able if at != min(usable[k])}
        places = sum([shared.places[p] for p in pcpus[at]]) - len(stay)
        incumbents = {k for k in others if now[k] == at}
        won = _winners(others, incumbents, max(0, places), thresholds, allowance)
        position |= dict.fromkeys((*stay, *won), at)
    free = [sum([max(0.0, view.free_cores.get(p, 0.0)) for p in ids]) for ids in pcpus]
    _use_spare_time(position, shared, claims, free, allowance)
    anywhere = frozenset().union(*pcpus) if _spare(shared, free) else None
    return {
        v.key: v.allowed
        & (anywhere if anywhere and _demand(v) < SLEEPS_RATIO else pcpus[position[v.key]])
        for v in shared.vcpus
    }


def _spare(shared: SharedCapacity, free_cores: Sequence[float]) -> bool:
    """Whether vCPUs outnumber the cores, and use them for so little that none has to wait."""
    used = sum([1.0 if v.utilization_ratio is None else v.utilization_ratio for v in shared.vcpus])
    cores = sum(free_cores)
    return len(shared.vcpus) > cores and used < CROWDED_RATIO * cores


def _demand(vcpu: VcpuView) -> float:
    """Cores that a vCPU wants; one without history counts as always running."""
    return 1.0 if vcpu.demand_ratio is None else vcpu.demand_ratio


def _winners(
    claims: Mapping[VcpuKey, float],
    incumbents: Collection[VcpuKey],
    count: int,
    thresholds: Mapping[VcpuKey, float],
    allowance: MoveAllowance,
) -> list[VcpuKey]:
    """The ``count`` strongest claims, where an incumbent's is stronger by its threshold.

    ``claims`` in the order of keys: of equal ones the first wins. Replacing an incumbent takes two
    moves: it leaves the core type and the challenger enters it.
    """
    if len(claims) <= count:
        return list(claims)
    held = {k: claims[k] + max(thresholds.get(k, 0.0), _NOISE) for k in claims if k in incumbents}
    inside = sorted(held, key=held.__getitem__, reverse=True)[:count]
    outside = [k for k in claims if k not in incumbents]
    outside.sort(key=claims.__getitem__, reverse=True)
    free = count - len(inside)
    won, challengers = outside[:free], outside[free:]
    for challenger in challengers:
        if not inside or claims[challenger] <= held[inside[-1]]:
            break
        if not allowance.take(2):
            break
        inside.pop()
        won.append(challenger)
    return inside + won


def _use_spare_time(
    position: dict[VcpuKey, int],
    shared: SharedCapacity,
    claims: Claims,
    free_cores: Sequence[float],
    allowance: MoveAllowance,
) -> None:
    """Let faster core types with time to spare take vCPUs from crowded slower ones.

    They either find room there, or wait less than they did before.
    """
    demand = {v.key: _demand(v) for v in shared.vcpus}
    excess, count = [-cores for cores in free_cores], Counter(position.values())
    for key, at in position.items():
        excess[at] += demand[key]
    for at in reversed(range(1, len(excess))):
        slower = [k for k, now in position.items() if now < at and at in shared.types[k]]
        for key in sorted(slower, key=lambda k: -claims[k][at]) if excess[at] < 0.0 else ():
            source, cores = position[key], demand[key]
            saved_cores = min(cores, max(0.0, excess[source])) - max(0.0, excess[at] + cores)
            crowded = excess[source] > (CROWDED_RATIO - 1.0) * free_cores[source]
            waits = crowded and count[source] > free_cores[source]
            room = waits and excess[at] + cores <= 0.0
            if (room or saved_cores >= GAIN_MIN_CORES) and allowance.take(1):
                position[key] = at
                count.update({source: -1, at: 1})
                excess[source] -= cores
                excess[at] += cores
