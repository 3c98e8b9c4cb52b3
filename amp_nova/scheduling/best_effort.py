"""The best-effort demand of a host: who shares the cores that bookings leave, and by which rule.

What counts is each vCPU by itself, also where the policy compares whole instances.
"""

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from amp_nova.model.topology import CoreType
from amp_nova.policies.placing import core_shares
from amp_nova.scheduling.sensitivity import UNKNOWN, scale_of, sensitivity_of
from amp_nova.wire.host_report import HostReport, ReportedInstance, ReportedVcpu

IDLE_VALUE_RATIO = 0.1
"""Value of idle capacity, which a later instance may use, over its value in use."""
RANKING_POLICIES = frozenset({"amp-vm", "amp-vcpu", "hsp", "amp-adaptive-fair", "amp-r-fair"})
"""Policies that give fast cores mainly to those that gain most; all others count as sharing."""
ONE_BY_ONE_MAX = 64
"""With more active vCPUs than this, all count as alike but for their sensitivity: the computation
takes 10 microseconds for each, for every kind of request, and no host may slow requests down."""


class Group(NamedTuple):
    """The best-effort vCPUs of an instance."""

    sensitivity: float
    vcpus: int


@dataclass(frozen=True, slots=True)
class FastCoreOrder:
    """Groups in the order in which a policy gives them fast cores, with sums along it.

    The sums give the throughput of a host without going through every instance. ``counts`` and
    ``sums``: how many vCPUs precede each group, and the sum of their sensitivities; the last
    element of each is the total.
    """

    groups: Sequence[Group]
    counts: Sequence[int]
    sums: Sequence[float]

    def sum_of(self, vcpus: float) -> float:
        """The sum of the sensitivities of the first ``vcpus``, which may be a fractional number."""
        if vcpus >= self.counts[-1]:
            return self.sums[-1]
        at = bisect_right(self.counts, vcpus) - 1
        return self.sums[at] + (vcpus - self.counts[at]) * self.groups[at].sensitivity

    def preceding(self, sensitivity: float) -> int:
        """How many vCPUs precede a new group, which comes before groups of equal sensitivity."""
        return self.counts[bisect_left(self.groups, -sensitivity, key=_least_sensitive)]

    def evenly(self) -> "FastCoreOrder":
        """All vCPUs as one group, which shares each core type evenly."""
        vcpus = self.counts[-1]
        return in_order([Group(self.sums[-1] / vcpus, vcpus)] if vcpus else [])


def in_order(groups: Iterable[Group]) -> FastCoreOrder:
    """The groups with the most sensitive first."""
    ordered = tuple(sorted(groups, key=_least_sensitive))
    return FastCoreOrder(
        ordered,
        tuple(accumulate((g.vcpus for g in ordered), initial=0)),
        tuple(accumulate((g.vcpus * g.sensitivity for g in ordered), initial=0.0)),
    )


def _least_sensitive(group: Group) -> float:
    return -group.sensitivity


class Active(NamedTuple):
    """The active best-effort vCPUs of an instance."""

    instance: ReportedInstance
    vcpus: Sequence[ReportedVcpu]
    sensitivity: float
    types: Sequence[frozenset[int]]
    """Positions of the core types that each vCPU may use; all if none of its pCPUs is online."""


@dataclass(frozen=True, slots=True)
class BestEffortDemand:
    """A host's active best-effort vCPUs, the cores of each type they share, and their throughput.

    ``ranked``: fast cores go mainly to those that gain most. ``order``: the instances, as if their
    vCPUs were alike in all but sensitivity. ``active``: the same one by one, empty if there are too
    many. ``alike``: the order says it all.
    """

    coefficients: Mapping[str, tuple[int, float]]
    """The position of each core type and its coefficient, by name."""
    cores: tuple[float, ...]
    ranked: bool
    alike: bool
    active: tuple[Active, ...]
    order: FastCoreOrder
    fastest_first: tuple[tuple[int, float, float], ...]
    """The position of each core type, its coefficient minus 1, and what an idle core is worth."""
    throughput: float = 0.0
    """What the vCPUs get, in reference cores."""


def demand_of(report: HostReport, free_cores: Mapping[str, Sequence[float]]) -> BestEffortDemand:
    """The best-effort demand of a host, without its throughput.

    ``free_cores``: what bookings leave of each pCPU, by core type.
    """
    topology = report.topology
    policy, _, _ = report.policy.partition(":")
    crowded = sum(_is_active(v) for i in report.instances for v in i.vcpus) > ONE_BY_ONE_MAX
    usable, scale = {} if crowded else _usable_types(report), scale_of(topology)
    groups: list[Group] = []
    active: list[Active] = []
    for instance in report.instances:
        if vcpus := [v for v in instance.vcpus if _is_active(v)]:
            own = sensitivity_of(instance, scale)
            groups.append(Group(UNKNOWN if own is None else own, len(vcpus)))
            if not crowded:
                types = [usable[v.cpus_allowed_list] for v in vcpus]
                active.append(Active(instance, vcpus, groups[-1].sensitivity, types))
    order, ranked = in_order(groups), policy in RANKING_POLICIES
    coefficients, fastest_first = _speeds(topology.core_types)
    return BestEffortDemand(
        coefficients,
        tuple(sum(max(0.0, f) for f in free_cores.get(name, ())) for name in coefficients),
        ranked,
        _alike(active, len(topology.core_types)),
        tuple(active),
        order if ranked else order.evenly(),
        fastest_first,
    )


@functools.lru_cache(maxsize=64)
def _speeds(
    core_types: tuple[CoreType, ...],
) -> tuple[dict[str, tuple[int, float]], tuple[tuple[int, float, float], ...]]:
    """``coefficients`` and ``fastest_first`` of a host.

    Cached, so that hosts of one model share them: the CPU's cache does not hold them for each.
    """
    coefficients = {t.name: (i, t.coefficient or 1.0) for i, t in enumerate(core_types)}
    return coefficients, tuple(
        (at, coefficient - 1.0, IDLE_VALUE_RATIO * (1.0 + UNKNOWN * (coefficient - 1.0)))
        for at, coefficient in reversed(coefficients.values())
    )


def _usable_types(report: HostReport) -> dict[str, frozenset[int]]:
    """``Active.types`` of each CPU list."""
    types = [report.topology.pcpus_of(t.name) for t in report.topology.core_types]
    return {
        text: frozenset(at for at, pcpus in enumerate(types) if not allowed.isdisjoint(pcpus))
        or frozenset(range(len(types)))
        for text, allowed in report.cpu_lists.items()
    }


def _is_active(vcpu: ReportedVcpu) -> bool:
    return not vcpu.booked and core_shares.wanted_to_run(vcpu.utilization_ratio)


def _alike(active: Sequence[Active], core_types: int) -> bool:
    """Whether all vCPUs have the same weight and may use every core type."""
    return all(
        each.instance.weight == 1.0 and all(len(t) == core_types for t in each.types)
        for each in active
    )
