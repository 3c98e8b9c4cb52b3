# SPDX-License-Identifier: Apache-2.0
"""Assignment: the core type that each vCPU has for one interval.

A policy says how strongly each vCPU claims each core type. This module turns claims into pCPUs:

1. A core type takes as many vCPUs as ``places`` says. From the fastest type down, the strongest
   claims win; a vCPU that loses on all others is on the slowest type that it may use. An incumbent,
   a vCPU that is on the type already, loses only to a claim that is stronger by more than a
   threshold of its own. The vCPUs of a parallel instance win together or not at all, unless nobody
   else is left to take the places.
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
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
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
Claim = Mapping[VcpuKey, float]
Unit = list[VcpuKey]
"""vCPUs that are placed together."""
Ranked = tuple[float, Unit]


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
    position: dict[VcpuKey, int] = {}
    for at in reversed(range(count)):
        able = [k for k in now if k not in position and at in usable[k]]
        stay = [k for k in able if at == min(usable[k])]
        others = {k: claims[k][at] for k in able if at != min(usable[k])}
        places = sum([shared.places[p] for p in pcpus[at]]) - len(stay)
        margins = {k: max(thresholds.get(k, 0.0), _NOISE) for k in others if now[k] == at}
        won = _winners(_units(others, shared), others, margins, max(0, places))
        position |= dict.fromkeys((*stay, *won), at)
    free = [sum([max(0.0, view.free_cores.get(p, 0.0)) for p in ids]) for ids in pcpus]
    _use_spare_time(position, shared, claims, free)
    sleepers, anywhere = set[VcpuKey](), frozenset[int]().union(*pcpus)
    if _spare(shared, free):
        asleep = {v.key for v in shared.vcpus if _demand(v) < SLEEPS_RATIO}
        sleepers = {k for unit in _units(now, shared) if asleep.issuperset(unit) for k in unit}
    return {
        v.key: v.allowed & (anywhere if v.key in sleepers else pcpus[position[v.key]])
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


def _units(keys: Iterable[VcpuKey], shared: SharedCapacity) -> list[Unit]:
    """vCPUs that are placed together: all of a parallel instance, the others one by one."""
    parallel = {v.key[0] for v in shared.vcpus if v.parallel}
    units: dict[str | VcpuKey, Unit] = {}
    for key in keys:
        units.setdefault(key[0] if key[0] in parallel else key, []).append(key)
    return list(units.values())


def _ranked(units: Iterable[Unit], claims: Claim, margins: Claim) -> list[Ranked]:
    """The units with their claims, strongest first: the mean of their vCPUs', plus thresholds."""
    ranked = [
        (sum([claims[k] for k in u]) / len(u) + sum([margins.get(k, 0.0) for k in u]), u)
        for u in units
    ]
    return sorted(ranked, key=itemgetter(0), reverse=True)


def _winners(units: Collection[Unit], claims: Claim, margins: Claim, count: int) -> list[VcpuKey]:
    """The ``count`` vCPUs with the strongest claims, where incumbents' thresholds add to theirs.

    ``units`` in the order of keys: of equals the first wins. ``margins``: incumbents' thresholds.
    """
    if len(claims) <= count:
        return list(claims)
    incumbents = _ranked([u for u in units if margins.keys() >= set(u)], claims, margins)
    outside = _ranked([u for u in units if not margins.keys() >= set(u)], claims, {})
    inside, won, free = list[Ranked](), list[VcpuKey](), count
    for claim, unit in incumbents:
        if len(unit) <= free:
            inside.append((claim, unit))
            free -= len(unit)
    for claim, unit in outside:
        places, kept = free, len(inside)
        while places < len(unit) and kept and claim > inside[kept - 1][0]:
            kept -= 1
            places += len(inside[kept][1])
        if places >= len(unit):
            del inside[kept:]
            won += unit
            free = places - len(unit)
    won = [k for _, unit in inside for k in unit] + won
    return won + _fillers(incumbents + outside, set(won), margins, free) if free else won


def _fillers(
    ranked: Iterable[Ranked], won: Collection[VcpuKey], margins: Claim, free: int
) -> list[VcpuKey]:
    """vCPUs for places that are left: units that fit, then parts of others, lest a core idle."""
    whole, parts = list[VcpuKey](), list[VcpuKey]()
    for _, unit in sorted(ranked, key=itemgetter(0), reverse=True):
        if unit[0] not in won:
            some = whole if len(unit) <= free - len(whole) else parts
            some += unit
    return (whole + sorted(parts, key=lambda k: k not in margins))[:free]


def _use_spare_time(
    position: dict[VcpuKey, int],
    shared: SharedCapacity,
    claims: Claims,
    free_cores: Sequence[float],
) -> None:
    """Let faster core types with time to spare take vCPUs from crowded slower ones.

    They either find room there, or wait less than they did before.
    """
    demand = {v.key: _demand(v) for v in shared.vcpus}
    excess, count = [-cores for cores in free_cores], Counter(position.values())
    for key, at in position.items():
        excess[at] += demand[key]
    for at in reversed(range(1, len(excess))):
        slower = {k for k, now in position.items() if now < at and at in shared.types[k]}
        units = _units(position, shared) if excess[at] < 0.0 else []
        units = [u for u in units if slower.issuperset(u) and len({position[k] for k in u}) == 1]
        units.sort(key=lambda u: -position[u[0]])
        for unit in sorted(units, key=lambda u: -sum([claims[k][at] for k in u]) / len(u)):
            source, cores = position[unit[0]], sum([demand[k] for k in unit])
            saved_cores = min(cores, max(0.0, excess[source])) - max(0.0, excess[at] + cores)
            crowded = excess[source] > (CROWDED_RATIO - 1.0) * free_cores[source]
            fits = crowded and excess[at] + cores <= 0.0
            waits = count[source] - len(unit) + 1 > free_cores[source]  # or else a core idles there
            if waits and (fits or saved_cores >= GAIN_MIN_CORES):
                position |= dict.fromkeys(unit, at)
                count.update({source: -len(unit), at: len(unit)})
                excess[source] -= cores
                excess[at] += cores
