"""Placement score: what the cloud's throughput gains if an instance goes to a host.

Best-effort vCPUs share what bookings leave, by the same computation as the host's own policy
(``policies.placing.core_shares``); a booking makes that share smaller. Speeds are in reference
cores: a workload of sensitivity ``x`` runs at ``1 + x (coefficient - 1)`` on a core type, so 0 is
entirely memory-bound work and 1 is work that gains all that the hardware offers (kwon2011,
section 2.1). Where the policy treats an instance as one program, so does the score: what counts is
what its runnable vCPUs gain together from the fast cores of the host (saez2015, section 2.2).
"""

import math
from bisect import insort_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from amp_nova.hardware.relative_speed import alone_shares, running_at_a_time
from amp_nova.model.topology import Topology
from amp_nova.policies.api import VcpuView
from amp_nova.policies.placing import core_shares
from amp_nova.profiling.hints import HINTS
from amp_nova.wire.host_report import PER_VCPU, HostReport, ReportedInstance, Speedup

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
"""Policies that give fast cores mainly to those that gain most; all others count as sharing."""
WHOLE_POLICIES = frozenset({"hsp", "acfs", "prop-sp", "eqp"})
"""Policies that go by the speedup of the whole instance, unless the report says otherwise. Those
that share do so in proportion to it, all other policies by vCPU."""
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


class Group(NamedTuple):
    """The best-effort vCPUs of an instance."""

    sensitivity: float
    vcpus: int
    reach: float = 1.0
    """What a workload of sensitivity 1 would gain from the fast cores if the instance were alone on
    the host, in reference cores per vCPU; 1 where every vCPU counts by itself."""

    @property
    def rank(self) -> float:
        """The gain by which policies order instances."""
        return self.sensitivity * self.reach

    @property
    def speed_alone(self) -> float:
        """The speed per vCPU, alone on the host, by which policies share among instances."""
        return 1.0 + self.rank


@dataclass(frozen=True, slots=True)
class BestEffortDemand:
    """A host's active best-effort vCPUs, the cores of each type they share, their throughput."""

    topology: Topology
    cores: tuple[float, ...]
    vcpus: tuple[VcpuView, ...]
    instances: Mapping[str, Group]
    ranked: bool
    whole: bool = False
    groups: tuple[Group, ...] | None = None
    """The instances, where all vCPUs are alike but for their sensitivity; descending."""
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
    policy, _, parameters = report.policy.partition(":")
    whole = policy in WHOLE_POLICIES and parameters != PER_VCPU
    vcpus: list[VcpuView] = []
    found = {}
    for instance in report.instances:
        active = _active(instance)
        if active:
            own = measured_sensitivity(instance, topology)
            if own is None:
                own = hinted_sensitivity(instance.hint, topology)
            reach = _reach(topology, active) if whole else 1.0
            known = UNKNOWN if own is None else own
            found[instance.resource] = Group(known, len(active), reach)
            vcpus += active
    groups = tuple(sorted(found.values(), key=_order)) if _alike(vcpus, topology) else None
    ranked = policy in RANKING_POLICIES
    demand = BestEffortDemand(topology, cores, tuple(vcpus), found, ranked, whole, groups)
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


def _active(instance: ReportedInstance) -> list[VcpuView]:
    """The best-effort vCPUs of an instance that want to run."""
    views = (
        VcpuView(
            (instance.resource, v.index),
            v.allowed,
            v.allowed,
            instance.weight,
            demand_ratio=v.utilization_ratio,
        )
        for v in instance.vcpus
        if not v.booked
    )
    return [view for view in views if core_shares.is_active(view)]


def _alike(vcpus: Iterable[VcpuView], topology: Topology) -> bool:
    """Whether all vCPUs have the same weight and may use every core type."""
    everywhere = frozenset(range(len(topology.core_types)))
    return all(v.weight == 1.0 and _positions(v, topology) == everywhere for v in vcpus)


def _order(group: Group) -> float:
    return -group.rank


def _reach(topology: Topology, vcpus: Sequence[VcpuView]) -> float:
    """``Group.reach`` of an instance with these active vCPUs."""
    usable = vcpus[0].allowed.union(*(v.allowed for v in vcpus[1:]))
    counts = [len(usable & topology.pcpus_of(t.name)) for t in topology.core_types]
    wanted = [1.0 if v.demand_ratio is None else v.demand_ratio for v in vcpus]
    return _reach_alone(topology, counts, running_at_a_time(wanted))


def _reach_alone(topology: Topology, counts: Sequence[int], running: float) -> float:
    alone = alone_shares(counts, running)
    extra = ((t.coefficient or 1.0) - 1.0 for t in topology.core_types)
    return math.fsum(a * e for a, e in zip(alone, extra, strict=True)) / math.fsum(alone)


def _group_of(demand: BestEffortDemand, new: NewInstance) -> Group:
    """The new instance, whose vCPUs may use every pCPU and always want to run."""
    reach, topology = 1.0, demand.topology
    if demand.whole:
        counts = [len(topology.pcpus_of(t.name)) for t in topology.core_types]
        reach = _reach_alone(topology, counts, new.best_effort)
    return Group(new.sensitivity, new.best_effort, reach)


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
        mine = _group_of(demand, new)
        insort_left(groups, mine, key=_order)
    count = sum(group.vcpus for group in groups)
    each = min(1.0, math.fsum(demand.cores) / count) if count else 0.0
    order, merged = groups, not (demand.ranked or demand.whole) and count > 0
    if merged:
        # All get equal shares: one instance with the mean sensitivity.
        order = [Group(math.fsum(g.sensitivity * g.vcpus for g in groups) / count, count)]
    missing, idle = [each * group.vcpus for group in order], list(demand.cores)
    total = own = 0.0
    for at in reversed(range(len(idle))):
        for place, cores in enumerate(_divided(demand, order, idle[at], missing)):
            if cores <= 0.0:
                continue
            group = order[place]
            missing[place] -= cores
            idle[at] = max(0.0, idle[at] - cores)
            total += cores * (1.0 + group.sensitivity * extra[at])
            if mine is not None and (merged or group is mine):
                part = cores * mine.vcpus / group.vcpus
                own += part * (1.0 + mine.sensitivity * extra[at])
    return total, own, idle


def _divided(
    demand: BestEffortDemand, order: Sequence[Group], cores: float, missing: Sequence[float]
) -> Sequence[float]:
    """Cores of a type for each instance: in order, or in proportion to their speed alone."""
    if not demand.ranked and demand.whole:
        return core_shares.water_fill(cores, missing, [g.speed_alone for g in order])
    taken = []
    for wanted in missing:
        taken.append(min(wanted, cores))
        cores -= taken[-1]
    return taken


def _by_vcpu(
    demand: BestEffortDemand, extra: Sequence[float], new: NewInstance | None
) -> tuple[float, float, list[float]]:
    """Throughput of all vCPUs and of the new instance's, and idle cores, as policies share them."""
    pcpus = frozenset(p.id for p in demand.topology.pcpus)
    vcpus, known = list(demand.vcpus), dict(demand.instances)
    if new is not None and new.best_effort:
        known[""] = _group_of(demand, new)
        vcpus += [VcpuView(("", i), pcpus, pcpus, new.weight) for i in range(new.best_effort)]
    each = min(1.0, math.fsum(demand.cores) / len(vcpus)) if vcpus else 0.0
    types = {v.key: _positions(v, demand.topology) for v in vcpus}
    shared = core_shares.SharedCapacity(tuple(vcpus), demand.cores, each, types)
    if demand.ranked:
        groups = core_shares.ranked_instances(shared, lambda v: known[v.key[0]].rank)
        shares = core_shares.distribute(shared, groups)
    elif demand.whole:
        proportion = {name: group.speed_alone / group.vcpus for name, group in known.items()}
        shares = core_shares.evenly(shared, lambda v: v.weight * proportion[v.key[0]])
    else:
        shares = core_shares.evenly(shared)
    total = own = 0.0
    idle = list(demand.cores)
    for key, amounts in shares.items():
        speed = 0.0
        for at, amount in enumerate(amounts):
            speed += amount * (1.0 + known[key[0]].sensitivity * extra[at])
            idle[at] -= amount
        total += speed
        own += speed if key[0] == "" else 0.0
    return total, own, idle


def _positions(vcpu: VcpuView, topology: Topology) -> frozenset[int]:
    """Positions of the core types it may use; of all if it may use none that is online."""
    types = [topology.pcpus_of(t.name) for t in topology.core_types]
    found = frozenset(at for at, pcpus in enumerate(types) if not vcpu.allowed.isdisjoint(pcpus))
    return found or frozenset(range(len(types)))
