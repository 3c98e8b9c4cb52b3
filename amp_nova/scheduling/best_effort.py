"""The best-effort demand of a host: who shares the cores that bookings leave, and by which rule.

If the policy treats an instance as one program, what counts is how much its runnable vCPUs together
gain from the fast cores of the host (saez2015, section 2.2).
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amp_nova.hardware.effective_speed import alone_shares, running_at_a_time
from amp_nova.model.topology import CoreType, Topology
from amp_nova.policies.api import PER_VCPU
from amp_nova.policies.placing import core_shares
from amp_nova.scheduling import fast_core_order
from amp_nova.scheduling.fast_core_order import FastCoreOrder, Group
from amp_nova.scheduling.sensitivity import UNKNOWN, scale_of, sensitivity_of
from amp_nova.wire.host_report import HostReport, ReportedInstance, ReportedVcpu

IDLE_VALUE_RATIO = 0.1
"""Value of idle capacity, which a later instance may use, over its value in use."""
RANKING_POLICIES = frozenset({"amp-vm", "amp-vcpu", "hsp", "amp-adaptive-fair", "amp-r-fair"})
"""Policies that give fast cores mainly to those that gain most; all others count as sharing."""
WHOLE_POLICIES = frozenset({"hsp", "acfs", "prop-sp", "eqp"})
"""Policies that go by the speedup of the whole instance, unless the report says otherwise. The
sharing ones among them share in proportion to it. All other policies go by vCPU."""
ONE_BY_ONE_MAX = 64
"""With more active vCPUs than this, all count as alike but for their sensitivity: the computation
takes 10 microseconds for each, for every kind of request, and no host may slow requests down."""


class Active(NamedTuple):
    """The active best-effort vCPUs of an instance."""

    instance: ReportedInstance
    vcpus: Sequence[ReportedVcpu]
    group: Group
    types: Sequence[frozenset[int]]
    """Positions of the core types that each vCPU may use; all if none of its pCPUs is online."""


@dataclass(frozen=True, slots=True)
class BestEffortDemand:
    """A host's active best-effort vCPUs, the cores of each type they share, and their throughput.

    ``ranked``: fast cores go mainly to those that gain most. ``whole``: instances are compared, not
    vCPUs. ``order``: the instances, as if their vCPUs were alike in all but sensitivity.
    ``active``: the same one by one, empty if there are too many. ``alike``: the order says it all.
    """

    topology: Topology
    coefficients: Mapping[str, tuple[int, float]]
    """The position of each core type and its coefficient, by name."""
    cores: tuple[float, ...]
    ranked: bool
    whole: bool
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
    policy, _, parameters = report.policy.partition(":")
    crowded = sum(_is_active(v) for i in report.instances for v in i.vcpus) > ONE_BY_ONE_MAX
    whole = policy in WHOLE_POLICIES and parameters != PER_VCPU and not crowded
    ranked = policy in RANKING_POLICIES
    counts, scale = _counts(report), scale_of(topology)
    groups: list[Group] = []
    active: list[Active] = []
    for instance in report.instances:
        if vcpus := [v for v in instance.vcpus if _is_active(v)]:
            own = sensitivity_of(instance, scale)
            reach = _reach(vcpus, counts, topology) if whole else 1.0
            groups.append(Group(UNKNOWN if own is None else own, len(vcpus), reach))
            if not crowded:
                types = [_positions(counts[v.cpus_allowed_list]) for v in vcpus]
                active.append(Active(instance, vcpus, groups[-1], types))
    order = fast_core_order.in_order(groups)
    alike = (ranked or not whole) and _alike(active, len(topology.core_types))
    coefficients, fastest_first = _speeds(topology.core_types)
    cores = tuple(sum(max(0.0, f) for f in free_cores.get(name, ())) for name in coefficients)
    return BestEffortDemand(
        topology,
        coefficients,
        cores,
        ranked,
        whole,
        alike,
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


def _counts(report: HostReport) -> dict[str, tuple[int, ...]]:
    """The number of pCPUs of each core type in each CPU list."""
    topology = report.topology
    types = [topology.pcpus_of(t.name) for t in topology.core_types]
    return {
        text: tuple([len(allowed & pcpus) for pcpus in types])
        for text, allowed in report.cpu_lists.items()
    }


def _positions(counts: Sequence[int]) -> frozenset[int]:
    return frozenset(at for at, n in enumerate(counts) if n) or frozenset(range(len(counts)))


def _is_active(vcpu: ReportedVcpu) -> bool:
    return not vcpu.booked and core_shares.wanted_to_run(vcpu.utilization_ratio)


def _reach(
    vcpus: Sequence[ReportedVcpu], counts: Mapping[str, tuple[int, ...]], topology: Topology
) -> float:
    """``Group.reach`` of an instance whose CPU lists are equal or do not overlap."""
    lists = [counts[text] for text in {v.cpus_allowed_list for v in vcpus}]
    wanted = [1.0 if v.utilization_ratio is None else v.utilization_ratio for v in vcpus]
    return _reach_alone(topology, list(map(sum, zip(*lists, strict=True))), wanted)


def _alike(active: Sequence[Active], core_types: int) -> bool:
    """Whether all vCPUs have the same weight and may use every core type."""
    return all(
        each.instance.weight == 1.0 and all(len(t) == core_types for t in each.types)
        for each in active
    )


def _reach_alone(topology: Topology, counts: Sequence[int], wanted: Sequence[float]) -> float:
    alone = alone_shares(counts, running_at_a_time(wanted))
    extra = ((t.coefficient or 1.0) - 1.0 for t in topology.core_types)
    return math.fsum(a * e for a, e in zip(alone, extra, strict=True)) / math.fsum(alone)


def group_of(demand: BestEffortDemand, sensitivity: float, vcpus: int) -> Group:
    """The group of a new instance, whose vCPUs may use every pCPU and always want to run."""
    reach, topology = 1.0, demand.topology
    if demand.whole:
        counts = [len(topology.pcpus_of(t.name)) for t in topology.core_types]
        reach = _reach_alone(topology, counts, [1.0] * vcpus)
    return Group(sensitivity, vcpus, reach)
