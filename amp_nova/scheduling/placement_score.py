"""Placement score: what the cloud's throughput gains if an instance goes to a host.

Best-effort vCPUs share what bookings leave as the host's own policy shares it
(``policies.placing.core_shares``), and a booking makes that share smaller. Here all vCPUs count as
alike but for their sensitivity, so sums along their order give the throughput of a host without
going through them: weights, and core types that a vCPU may not use, are ignored. Speeds are in
reference cores.
"""

import functools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from amp_nova.model.topology import CoreType
from amp_nova.policies.placing.core_shares import wanted_to_run
from amp_nova.scheduling.sensitivity import UNKNOWN, scale_of, sensitivity_of
from amp_nova.wire.host_report import HostReport

FAST_CORE_COST_RATIO = 0.5
"""Cost, as a share of the booking, of putting a booking that fits a reference core on a faster one:
the fast core could serve an instance that no slower core can."""
GAIN_MAX = 4.0
"""Greatest gain that counts, in reference cores per vCPU."""
IDLE_VALUE_RATIO = 0.1
"""Value of idle capacity, which a later instance may use, over its value in use."""
RANKING_POLICIES = frozenset({"amp-vm", "amp-vcpu", "hsp", "amp-adaptive-fair", "amp-r-fair"})
"""Policies that give fast cores mainly to those that gain most; all others count as sharing."""


class SensitivityGroup(NamedTuple):
    """The best-effort vCPUs of an instance."""

    sensitivity: float
    vcpus: int


@dataclass(frozen=True, slots=True)
class FastCoreOrder:
    """Groups in the order in which a policy gives them fast cores, with sums along it.

    ``counts`` and ``sums``: how many vCPUs precede each group, and the sum of their sensitivities;
    the last element of each is the total.
    """

    groups: Sequence[SensitivityGroup]
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


def _in_order(groups: Iterable[SensitivityGroup]) -> FastCoreOrder:
    """The groups with the most sensitive first."""
    ordered = tuple(sorted(groups, key=_least_sensitive))
    return FastCoreOrder(
        ordered,
        tuple(accumulate((g.vcpus for g in ordered), initial=0)),
        tuple(accumulate((g.vcpus * g.sensitivity for g in ordered), initial=0.0)),
    )


def _least_sensitive(group: SensitivityGroup) -> float:
    return -group.sensitivity


@dataclass(frozen=True, slots=True)
class BestEffortDemand:
    """A host's active best-effort vCPUs, the cores of each type they share, and their throughput.

    ``ranked``: fast cores go mainly to those that gain most; otherwise all vCPUs are one group in
    ``order``, which shares each core type evenly.
    """

    coefficients: Mapping[str, tuple[int, float]]
    """The position of each core type and its coefficient, by name."""
    cores: tuple[float, ...]
    ranked: bool
    order: FastCoreOrder
    fastest_first: tuple[tuple[int, float, float], ...]
    """The position of each core type, its coefficient minus 1, and what an idle core is worth."""
    throughput: float = 0.0
    """What the vCPUs get, in reference cores."""


@dataclass(frozen=True, slots=True)
class NewInstance:
    """An instance to be placed: its best-effort vCPUs, and what its other vCPUs book.

    ``best_effort`` is a number of vCPUs; ``booked_refcores`` come largest first.
    """

    best_effort: int
    booked_refcores: tuple[float, ...] = ()
    sensitivity: float = UNKNOWN


NOBODY = NewInstance(0)


class PlacementScore(NamedTuple):
    """What a host is worth to an instance, and to the cloud.

    ``gain``: the cloud's gain in throughput, in reference cores per vCPU (per reference core for
    bookings). ``speed``: the mean speed of its best-effort vCPUs there, in reference cores.
    """

    gain: float
    speed: float


def best_effort_demand(
    report: HostReport, free_cores: Mapping[str, Sequence[float]]
) -> BestEffortDemand:
    """The best-effort demand of a host; ``free_cores``: what bookings leave, by core type."""
    policy, _, _ = report.policy.partition(":")
    ranked, scale = policy in RANKING_POLICIES, scale_of(report.topology)
    groups = []
    for instance in report.instances:
        active = [v for v in instance.vcpus if not v.booked and wanted_to_run(v.utilization_ratio)]
        if active:
            own = sensitivity_of(instance, scale)
            groups.append(SensitivityGroup(UNKNOWN if own is None else own, len(active)))
    if groups and not ranked:
        vcpus = sum(g.vcpus for g in groups)
        groups = [SensitivityGroup(sum(g.vcpus * g.sensitivity for g in groups) / vcpus, vcpus)]
    coefficients, fastest_first = _speeds(report.topology.core_types)
    cores = tuple(sum(max(0.0, f) for f in free_cores.get(name, ())) for name in coefficients)
    demand = BestEffortDemand(coefficients, cores, ranked, _in_order(groups), fastest_first)
    return replace(demand, throughput=_throughput(demand, cores, NOBODY)[0])


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


def score(
    demand: BestEffortDemand, new: NewInstance, core_types: Sequence[str] = ()
) -> PlacementScore:
    """The score of a host for an instance; ``core_types``: where its booked vCPUs are packed."""
    cores, displacing = list(demand.cores), 0.0
    for name, refcores in zip(core_types, new.booked_refcores, strict=False):
        at, coefficient = demand.coefficients[name]
        left = cores[at] - refcores / coefficient
        cores[at] = left if left > 0.0 else 0.0
        if refcores <= 1.0 < coefficient:
            displacing += refcores
    throughput, own_throughput = _throughput(demand, cores, new)
    booked = math.fsum(new.booked_refcores)
    gain = booked + throughput - demand.throughput - FAST_CORE_COST_RATIO * displacing
    speed = own_throughput / new.best_effort if new.best_effort else 0.0
    return PlacementScore(gain / (booked + new.best_effort or 1.0), speed)


def _throughput(
    demand: BestEffortDemand, cores: Sequence[float], new: NewInstance
) -> tuple[float, float]:
    """The throughput of all vCPUs and of the new instance's, in reference cores.

    All have the same CPU time, so the fastest cores serve the first vCPUs in the order. Idle
    capacity counts in the first at ``IDLE_VALUE_RATIO``.
    """
    order, own, x, before = demand.order, new.best_effort, new.sensitivity, 0
    if own and demand.ranked:
        before = order.preceding(x)
    count = order.counts[-1] + own
    own_ratio = own / count if own else 0.0  # exactly 1 on a host without others
    each = sum(cores) / count if count else 0.0
    each = 1.0 if each > 1.0 else each
    total = own_total = first = first_own = first_sum = last_own = 0.0
    for at, faster, idle_worth in demand.fastest_first:
        idle = cores[at]
        last = first + idle / each if each else 0.0
        if last > count:
            last = count
        if own:
            last_own = min(max(0.0, last - before), own) if demand.ranked else last * own_ratio
            own_total += each * (last_own - first_own) * (1.0 + faster * x)
        last_sum = order.sum_of(last - last_own) + last_own * x
        used = each * (last - first)
        total += used + each * faster * (last_sum - first_sum) + idle_worth * (idle - used)
        first, first_own, first_sum = last, last_own, last_sum
    return total, own_total
