"""Placement score: what the cloud's throughput gains if an instance goes to a host.

Best-effort vCPUs share what bookings leave, by the same computation as the host's own policy
(``policies.placing.core_shares``); a booking makes that share smaller. Speeds are in reference
cores: a workload of sensitivity ``x`` runs at ``1 + x (coefficient - 1)`` on a core type, so 0 is
entirely memory-bound work and 1 is work that gains all that the hardware offers (kwon2011,
section 2.1).
"""

import math
from bisect import insort_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import Topology
from amp_nova.policies.api import VcpuView
from amp_nova.policies.placing import core_shares
from amp_nova.profiling.hints import HINTS
from amp_nova.wire.host_report import HostReport, ReportedInstance, Speedup

UNKNOWN = HINTS["medium"]
"""Sensitivity of an instance without measurement and hint."""
SENSITIVITY_MAX = 1.5
"""Work that fits a fast core's larger caches may gain more than the coefficient says."""
IDLE_VALUE_RATIO = 0.1
"""Value of idle capacity over its value in use: a later instance may use it."""
FAST_CORE_COST_RATIO = 0.5
"""Cost of a booking that a reference core could hold on a faster one, over what it books: the fast
core could serve an instance that no slower core can."""
RANKING_POLICIES = frozenset({"amp-vm", "amp-vcpu", "hsp", "amp-adaptive-fair", "amp-r-fair"})
"""Policies that give fast cores mainly to those that gain most; all others count as sharing
evenly."""
GAIN_MAX = 4.0
"""Gains beyond this many reference cores per vCPU count as this."""


@dataclass(frozen=True, slots=True)
class NewInstance:
    """An instance to be placed: its best-effort vCPUs, and what the others book, largest first."""

    best_effort: int
    booked_refcores: tuple[float, ...] = ()
    sensitivity: float = UNKNOWN
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PlacementScore:
    """What a host is worth to an instance, and to the cloud.

    ``gain``: the cloud's gain in throughput, in reference cores per vCPU (per reference core for
    bookings). ``speed``: the mean speed of its best-effort vCPUs there, in reference cores.
    """

    gain: float
    speed: float


Group = tuple[float, int]
"""The sensitivity of an instance's best-effort vCPUs, and how many there are."""


@dataclass(frozen=True, slots=True)
class BestEffortDemand:
    """A host's active best-effort vCPUs, the cores of each type they share, their throughput."""

    topology: Topology
    cores: tuple[float, ...]
    vcpus: tuple[VcpuView, ...]
    sensitivities: Mapping[VcpuKey, float]
    ranked: bool
    groups: tuple[Group, ...] | None = None
    """By instance, where all vCPUs are alike but for their sensitivity; descending."""
    throughput: float = 0.0


def hinted_sensitivity(hint: float | str | None, topology: Topology) -> float | None:
    """The sensitivity that ``amp:efficiency`` means on a host; ``None`` without a hint."""
    if hint is None or isinstance(hint, str):
        return None if hint is None else HINTS.get(hint)
    return sensitivity(Speedup(hint), topology)


def sensitivity(speedup: Speedup, topology: Topology) -> float | None:
    """The sensitivity of a workload with this speedup; ``None`` on a host of one core type.

    Solves ``speedup = (1 + x (fast - 1)) / (1 + x (slow - 1))`` for ``x``.
    """
    known = [t.coefficient for t in topology.core_types if t.coefficient is not None]
    if len(known) < 2 or known[-1] <= known[0]:
        return None
    slope = (known[-1] - 1.0) - speedup.ratio * (known[0] - 1.0)
    if slope <= 0.0:
        return SENSITIVITY_MAX
    return min(max((speedup.ratio - 1.0) / slope, 0.0), SENSITIVITY_MAX)


def measured_sensitivity(instance: ReportedInstance, topology: Topology) -> float | None:
    """An instance's sensitivity as its host measured it, the mean over its vCPUs."""
    found = [
        x
        for v in instance.vcpus
        if v.speedup is not None and (x := sensitivity(v.speedup, topology)) is not None
    ]
    return math.fsum(found) / len(found) if found else None


def best_effort_demand(
    report: HostReport, free_cores: Mapping[str, Sequence[float]]
) -> BestEffortDemand:
    """The best-effort demand of a host; ``free_cores``: what bookings leave, by core type."""
    topology = report.topology
    cores = tuple(
        sum(max(0.0, free) for free in free_cores.get(t.name, ())) for t in topology.core_types
    )
    vcpus, known = [], {}
    for instance in report.instances:
        own = measured_sensitivity(instance, topology)
        if own is None:
            own = hinted_sensitivity(instance.hint, topology)
        for vcpu in instance.vcpus:
            if vcpu.booked:
                continue
            key = (instance.resource, vcpu.index)
            view = VcpuView(
                key,
                vcpu.allowed,
                vcpu.allowed,
                instance.weight,
                demand_ratio=vcpu.utilization_ratio,
            )
            if core_shares.is_active(view):
                vcpus.append(view)
                known[key] = UNKNOWN if own is None else own
    ranked = report.policy in RANKING_POLICIES
    groups = _groups(vcpus, known, topology)
    demand = BestEffortDemand(topology, cores, tuple(vcpus), known, ranked, groups)
    return replace(demand, throughput=_throughput(demand)[0])


def score(
    demand: BestEffortDemand, new: NewInstance, core_types: Sequence[str] = ()
) -> PlacementScore:
    """The score of a host for an instance; ``core_types``: where its booked vCPUs are packed."""
    topology = demand.topology
    taken = dict.fromkeys((t.name for t in topology.core_types), 0.0)
    displacing = 0.0
    for name, refcores in zip(core_types, new.booked_refcores, strict=False):
        coefficient = topology.core_type(name).coefficient or 1.0
        taken[name] += refcores / coefficient
        displacing += refcores if refcores <= 1.0 < coefficient else 0.0
    cores = tuple(
        max(0.0, c - taken[t.name]) for c, t in zip(demand.cores, topology.core_types, strict=True)
    )
    throughput, own_throughput = _throughput(replace(demand, cores=cores), new)
    booked = math.fsum(new.booked_refcores)
    gain = booked + throughput - demand.throughput - FAST_CORE_COST_RATIO * displacing
    speed = own_throughput / new.best_effort if new.best_effort else 0.0
    return PlacementScore(gain / (booked + new.best_effort or 1.0), speed)


def _groups(
    vcpus: Sequence[VcpuView], known: Mapping[VcpuKey, float], topology: Topology
) -> tuple[Group, ...] | None:
    """Best-effort vCPUs by instance; ``None`` where weights or allowed core types differ."""
    everywhere = frozenset(range(len(topology.core_types)))
    if any(v.weight != 1.0 or _positions(v, topology) != everywhere for v in vcpus):
        return None
    counts = Counter(v.key[0] for v in vcpus)
    levels = {v.key[0]: known[v.key] for v in vcpus}
    return tuple(sorted(((levels[uuid], n) for uuid, n in counts.items()), reverse=True))


def _throughput(demand: BestEffortDemand, new: NewInstance | None = None) -> tuple[float, float]:
    """The throughput of all vCPUs and of the new instance's, in reference cores.

    Idle capacity counts in the first at ``IDLE_VALUE_RATIO``.
    """
    extra = [(t.coefficient or 1.0) - 1.0 for t in demand.topology.core_types]
    alike = new is None or new.weight == 1.0 or not new.best_effort
    if demand.groups is not None and alike:
        total, own, idle = _by_instance(demand, demand.groups, extra, new)
    else:
        total, own, idle = _by_vcpu(demand, extra, new)
    unused = sum(i * (1.0 + UNKNOWN * f) for i, f in zip(idle, extra, strict=True))
    return total + IDLE_VALUE_RATIO * unused, own


def _by_instance(
    demand: BestEffortDemand,
    present: tuple[Group, ...],
    extra: Sequence[float],
    new: NewInstance | None,
) -> tuple[float, float, list[float]]:
    """As ``_by_vcpu`` where vCPUs are alike: some 5 times as fast, which a scheduler notices."""
    groups = list(present)
    mine: Group | None = None
    if new is not None and new.best_effort:
        mine = (new.sensitivity, new.best_effort)
        insort_left(groups, mine, key=lambda group: (-group[0], -group[1]))
    count = sum(n for _, n in groups)
    each = min(1.0, math.fsum(demand.cores) / count) if count else 0.0
    order = groups
    if not demand.ranked and count:
        # All get equal shares: one instance with the mean sensitivity.
        order = [(math.fsum(x * n for x, n in groups) / count, count)]
    missing, idle = [each] * len(order), list(demand.cores)
    total = own = 0.0
    for at in reversed(range(len(idle))):
        for place, group in enumerate(order):
            x, n = group
            share = min(missing[place], idle[at] / n)
            if share <= 0.0:
                continue
            missing[place] -= share
            idle[at] = max(0.0, idle[at] - share * n)
            total += share * n * (1.0 + x * extra[at])
            if mine is not None and (group is mine or not demand.ranked):
                own += share * mine[1] * (1.0 + mine[0] * extra[at])
    return total, own, idle


def _by_vcpu(
    demand: BestEffortDemand, extra: Sequence[float], new: NewInstance | None
) -> tuple[float, float, list[float]]:
    """Throughput of all vCPUs and of the new instance's, and idle cores, as policies share them."""
    pcpus = frozenset(p.id for p in demand.topology.pcpus)
    vcpus, known = list(demand.vcpus), dict(demand.sensitivities)
    for index in range(new.best_effort if new else 0):
        assert new is not None
        vcpus.append(VcpuView(("", index), pcpus, pcpus, new.weight))
        known["", index] = new.sensitivity
    each = min(1.0, math.fsum(demand.cores) / len(vcpus)) if vcpus else 0.0
    types = {v.key: _positions(v, demand.topology) for v in vcpus}
    shared = core_shares.SharedCapacity(tuple(vcpus), demand.cores, each, types)
    if demand.ranked:
        groups = core_shares.ranked_instances(shared, lambda v: known[v.key])
        shares = core_shares.distribute(shared, groups)
    else:
        shares = core_shares.evenly(shared)
    total = own = 0.0
    idle = list(demand.cores)
    for key, amounts in shares.items():
        speed = 0.0
        for at, amount in enumerate(amounts):
            speed += amount * (1.0 + known[key] * extra[at])
            idle[at] -= amount
        total += speed
        own += speed if key[0] == "" else 0.0
    return total, own, idle


def _positions(vcpu: VcpuView, topology: Topology) -> frozenset[int]:
    """Positions of the core types it may use; of all if it may use none that is online."""
    types = [topology.pcpus_of(t.name) for t in topology.core_types]
    found = frozenset(at for at, pcpus in enumerate(types) if not vcpu.allowed.isdisjoint(pcpus))
    return found or frozenset(range(len(types)))
