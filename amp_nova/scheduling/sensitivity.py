"""Sensitivity: how much a workload gains from faster cores, comparable between hosts.

A workload of sensitivity ``x`` runs at ``1 + x (coefficient - 1)`` reference cores on a core type,
so 0 is entirely memory-bound work and 1 is work that gains all that the hardware offers (kwon2011,
section 2.1).
"""

import math

from amp_nova.model.topology import Topology
from amp_nova.profiling.hints import HINTS
from amp_nova.wire.host_report import ReportedInstance, Speedup

UNKNOWN = HINTS["medium"]
"""Sensitivity of an instance without a measurement or hint."""
SENSITIVITY_MAX = 1.5
"""Work that fits a fast core's larger caches may gain more than the coefficient says."""


def hinted_sensitivity(hint: float | str | None, topology: Topology) -> float | None:
    """The sensitivity that ``amp:efficiency`` means on a host; ``None`` without a hint."""
    if hint is None or isinstance(hint, str):
        return None if hint is None else HINTS.get(hint)
    return sensitivity(Speedup(hint), topology)


def sensitivity(speedup: Speedup, topology: Topology) -> float | None:
    """The sensitivity of a workload with this speedup; ``None`` on a host of one core type.

    Solves ``speedup = (1 + x (fast - 1)) / (1 + x (slow - 1))`` for ``x``.
    """
    coefficients = _slowest_and_fastest(topology)
    return None if coefficients is None else _solved(speedup.ratio, *coefficients)


def measured_sensitivity(instance: ReportedInstance, topology: Topology) -> float | None:
    """An instance's sensitivity as its host measured it, the mean over its vCPUs."""
    ratios = [v.speedup.ratio for v in instance.vcpus if v.speedup is not None]
    if not ratios or (coefficients := _slowest_and_fastest(topology)) is None:
        return None
    return math.fsum(_solved(ratio, *coefficients) for ratio in ratios) / len(ratios)


def _slowest_and_fastest(topology: Topology) -> tuple[float, float] | None:
    known = [t.coefficient for t in topology.core_types if t.coefficient is not None]
    return (known[0], known[-1]) if len(known) > 1 and known[-1] > known[0] else None


def _solved(ratio: float, slow: float, fast: float) -> float:
    slope = (fast - 1.0) - ratio * (slow - 1.0)
    if slope <= 0.0:
        return SENSITIVITY_MAX
    return min(max((ratio - 1.0) / slope, 0.0), SENSITIVITY_MAX)
