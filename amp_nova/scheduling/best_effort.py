"""The best-effort demand of a host: who shares the cores that bookings leave, and by which rule.

If the policy treats an instance as one program, what counts is how much its runnable vCPUs together
gain from the fast cores of the host (saez2015, section 2.2).
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amp_nova.hardware.relative_speed import alone_shares, running_at_a_time
from amp_nova.model.topology import CoreType, Topology
from amp_nova.policies.parameters import PER_VCPU
from amp_nova.policies.placing import core_shares
from amp_nova.scheduling import fast_core_order
from amp_nova.scheduling.fast_core_order import FastCoreOrder, Group
from amp_nova.scheduling.sensitivity import UNKNOWN, hinted_sensitivity, measured_sensitivities
from amp_nova.wire.host_report import (
    HostReport,
    ReportedInstance,
    ReportedVcpu,
    pcpus_of,
)

IDLE_VALUE_RATIO = 0.1
"""Value of idle capacity, which a later instance may use, over its value in use."""
RANKING_POLICIES = frozenset({"amp-vm", "amp-vcpu", "hsp", "amp-adaptive-fair", "amp-r-fair"})
"""Policies that give fast cores mainly to those that gain most; all others count as sharing."""
WHOLE_POLICIES = frozenset({"hsp", "acfs", "prop-sp", "eqp"})
"""Policies that go by the speedup of the whole instance, unless the report says otherwise. The
sharing ones among them share in proportion to it. All other policies go by vCPU."""


class Active(NamedTuple):
    """The active best-effort vCPUs of an instance."""

    instance: ReportedInstance
    vcpus: Sequence[ReportedVcpu]
    group: Group


@dataclass(frozen=True, slots=True)
class BestEffortDemand:
    """A host's active best-effort vCPUs, the cores of each type they share, and their throughput.

    ``ranked``: fast cores go mainly to those that gain most. ``whole``: instances are compared, not
    vCPUs. ``order``: the instances, if their vCPUs are alike in all but sensitivity.
    """

    topology: Topology
    coefficients: Mapping[str, tuple[int, float]]
    """The position of each core type and its coefficient, by name."""
    cores: tuple[float, ...]
    ranked: bool
    whole: bool
    active: tuple[Active, ...]
    order: FastCoreOrder | None
    fastest_first: tuple[tuple[int, float, float], ...]
    """The position of each core type, its coefficient minus 1, and what an idle core is worth."""
    throughput: float = 0.0
    """What the vCPUs get, in reference cores."""


def demand_of(report: HostReport, free_cores: Mapping[str, Sequence[float]]) -> BestEffortDemand:
    """The best-effort demand of a host, without its throughput.

    ``free_cores``: what bookings leave of each pCPU, by core type.
    """
    topology = report.topology
    policy, _, parameters = report.policy.partition(":")
    whole = policy in WHOLE_POLICIES and parameters != PER_VCPU
    ranked = policy in RANKING_POLICIES
    measured = measured_sensitivities(report)
    active = tuple(
        Active(i, vcpus, _group(i, vcpus, measured.get(i.resource), topology, whole=whole))
        for i in report.instances
        if (vcpus := tuple(v for v in i.vcpus if _is_active(v)))
    )
    order = None
    if _alike(active, topology):
        order = fast_core_order.in_order(each.group for each in active)
        order = order if ranked or whole else order.evenly()
    coefficients, fastest_first = _speeds(topology.core_types)
    cores = tuple(sum(max(0.0, f) for f in free_cores.get(name, ())) for name in coefficients)
    return BestEffortDemand(
        topology, coefficients, cores, ranked, whole, active, order, fastest_first
    )


@functools.lru_cache(maxsize=1024)
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


def _is_active(vcpu: ReportedVcpu) -> bool:
    return not vcpu.booked and core_shares.wanted_to_run(vcpu.utilization_ratio)


def _group(
    instance: ReportedInstance,
    vcpus: Sequence[ReportedVcpu],
    measured: float | None,
    topology: Topology,
    *,
    whole: bool,
) -> Group:
    found = hinted_sensitivity(instance.hint, topology) if measured is None else measured
    reach = 1.0
    if whole:
        usable = frozenset[int]().union(*(v.allowed for v in vcpus))
        counts = [len(usable & topology.pcpus_of(t.name)) for t in topology.core_types]
        wanted = [1.0 if v.utilization_ratio is None else v.utilization_ratio for v in vcpus]
        reach = _reach_alone(topology, counts, running_at_a_time(wanted))
    return Group(UNKNOWN if found is None else found, len(vcpus), reach)


def _alike(active: Sequence[Active], topology: Topology) -> bool:
    """Whether all vCPUs have the same weight and may use every core type."""
    everywhere = frozenset(range(len(topology.core_types)))
    allowed = {v.cpus_allowed_list for each in active for v in each.vcpus}
    return all(each.instance.weight == 1.0 for each in active) and all(
        positions(pcpus_of(text), topology) == everywhere for text in allowed
    )


def _reach_alone(topology: Topology, counts: Sequence[int], running: float) -> float:
    alone = alone_shares(counts, running)
    extra = ((t.coefficient or 1.0) - 1.0 for t in topology.core_types)
    return math.fsum(a * e for a, e in zip(alone, extra, strict=True)) / math.fsum(alone)


def group_of(demand: BestEffortDemand, sensitivity: float, vcpus: int) -> Group:
    """The group of a new instance, whose vCPUs may use every pCPU and always want to run."""
    reach, topology = 1.0, demand.topology
    if demand.whole:
        counts = [len(topology.pcpus_of(t.name)) for t in topology.core_types]
        reach = _reach_alone(topology, counts, vcpus)
    return Group(sensitivity, vcpus, reach)


def positions(allowed: frozenset[int], topology: Topology) -> frozenset[int]:
    """Positions of the core types of these pCPUs; of all if none of them is online."""
    types = [topology.pcpus_of(t.name) for t in topology.core_types]
    found = frozenset(at for at, pcpus in enumerate(types) if not allowed.isdisjoint(pcpus))
    return found or frozenset(range(len(types)))
