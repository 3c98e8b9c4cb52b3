"""Sensitivity: how much a workload gains from faster cores, comparable between hosts.

A workload of sensitivity ``x`` runs at ``1 + x (coefficient - 1)`` reference cores on a core type,
so 0 is entirely memory-bound work and 1 is work that gains all that the hardware offers (kwon2011,
section 2.1).
"""

import math

from amp_nova.model.topology import Topology
from amp_nova.profiling.hints import HINTS
from amp_nova.wire.host_report import HostReport, Speedup

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


def measured_sensitivities(report: HostReport) -> dict[str, float]:
    """The sensitivities of instances as their host measured them, each the mean over its vCPUs.

    By uuid; instances without a measurement are left out, on a host of one core type all of them.
    """
    if (coefficients := _slowest_and_fastest(report.topology)) is None:
        return {}
    slow, fast = coefficients
    return {
        i.resource: math.fsum(solved) / len(solved)
        for i in report.instances
        if (solved := [_solved(v.speedup.ratio, slow, fast) for v in i.vcpus if v.speedup])
    }


def _slowest_and_fastest(topology: Topology) -> tuple[float, float] | None:
    known = [t.coefficient for t in topology.core_types if t.coefficient is not None]
    return (known[0], known[-1]) if len(known) > 1 and known[-1] > known[0] else None


def _solved(ratio: float, slow: float, fast: float) -> float:
    slope = (fast - 1.0) - ratio * (slow - 1.0)
    if slope <= 0.0:
        return SENSITIVITY_MAX
    return min(max((ratio - 1.0) / slope, 0.0), SENSITIVITY_MAX)
