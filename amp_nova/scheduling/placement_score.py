# SPDX-License-Identifier: Apache-2.0
"""Placement score: what the cloud's throughput gains if an instance goes to a host.

Active best-effort vCPUs share evenly what bookings leave, the fastest cores first, and a booking
makes that share smaller. Weights, policies that rank, and core types that a vCPU may not use are
ignored. Speeds are in reference cores.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class BestEffortDemand:
    """A host's active best-effort vCPUs, the cores of each type they share, and their throughput.

    ``coefficients`` and ``cores`` are by core type, slowest first. ``sensitivity``: the mean of the
    vCPUs. ``throughput``: what they get, in reference cores.
    """

    coefficients: dict[str, float]
    cores: dict[str, float]
    vcpus: int = 0
    sensitivity: float = UNKNOWN
    throughput: float = 0.0


@dataclass(frozen=True, slots=True)
class NewInstance:
    """An instance to be placed: its best-effort vCPUs, and what its other vCPUs book.

    ``best_effort`` is a number of vCPUs; ``booked_refcores`` come largest first.
    """

    best_effort: int
    booked_refcores: tuple[float, ...] = ()
    sensitivity: float = UNKNOWN


def best_effort_demand(
    report: HostReport, free_cores: Mapping[str, Sequence[float]]
) -> BestEffortDemand:
    """The best-effort demand of a host; ``free_cores``: what bookings leave, by core type."""
    scale, vcpus, sensitive = scale_of(report.topology), 0, 0.0
    for instance in report.instances:
        active = sum(not v.booked and wanted_to_run(v.utilization_ratio) for v in instance.vcpus)
        if active:
            own = sensitivity_of(instance, scale)
            vcpus += active
            sensitive += active * (UNKNOWN if own is None else own)
    coefficients = {t.name: t.coefficient or 1.0 for t in report.topology.core_types}
    cores = {name: sum(max(0.0, f) for f in free_cores.get(name, ())) for name in coefficients}
    sensitivity = sensitive / vcpus if vcpus else UNKNOWN
    demand = BestEffortDemand(coefficients, cores, vcpus, sensitivity)
    return replace(demand, throughput=_throughput(demand, cores, NewInstance(0))[0])


def idle_worth(coefficient: float) -> float:
    """What an idle core of a type is worth, in reference cores."""
    return IDLE_VALUE_RATIO * (1.0 + UNKNOWN * (coefficient - 1.0))


def score(
    demand: BestEffortDemand, new: NewInstance, core_types: Sequence[str] = ()
) -> tuple[float, float]:
    """The cloud's gain in throughput if an instance goes to a host, and its speed there.

    The gain is in reference cores per vCPU, or per reference core for bookings, the speed of its
    best-effort vCPUs in reference cores. ``core_types``: where its booked vCPUs are packed.
    """
    cores, displacing = dict(demand.cores), 0.0
    for name, refcores in zip(core_types, new.booked_refcores, strict=False):
        coefficient = demand.coefficients[name]
        cores[name] = max(0.0, cores[name] - refcores / coefficient)
        if refcores <= 1.0 < coefficient:
            displacing += refcores
    throughput, speed = _throughput(demand, cores, new)
    booked = math.fsum(new.booked_refcores)
    gain = booked + throughput - demand.throughput - FAST_CORE_COST_RATIO * displacing
    return gain / (booked + new.best_effort or 1.0), speed


def _throughput(
    demand: BestEffortDemand, cores: Mapping[str, float], new: NewInstance
) -> tuple[float, float]:
    """The throughput of all vCPUs, and the speed of one of the new instance, in reference cores.

    Idle capacity counts in the first at ``IDLE_VALUE_RATIO``.
    """
    count = demand.vcpus + new.best_effort
    sensitive = demand.vcpus * demand.sensitivity + new.best_effort * new.sensitivity
    mean = sensitive / count if count else 0.0
    left, total, as_new = min(float(count), sum(cores.values())), 0.0, 0.0
    for name, coefficient in reversed(demand.coefficients.items()):
        used, faster = min(cores[name], left), coefficient - 1.0
        left -= used
        total += used * (1.0 + faster * mean) + idle_worth(coefficient) * (cores[name] - used)
        as_new += used * (1.0 + faster * new.sensitivity)
    return total, as_new / count if new.best_effort else 0.0
