# SPDX-License-Identifier: Apache-2.0
"""Sensitivity: how much a workload gains from faster cores, comparable between hosts.

A workload of sensitivity ``x`` runs at ``1 + x (coefficient - 1)`` reference cores on a core type,
so 0 is entirely memory-bound work and 1 is work that gains all that the hardware offers (kwon2011,
section 2.1).
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping

from amp_nova.model.topology import Topology
from amp_nova.profiling.speedup import HINTS
from amp_nova.wire.host_report import HostReport, ReportedInstance

UNKNOWN = HINTS["medium"]
"""Sensitivity of an instance without a measurement or hint."""
SENSITIVITY_MAX = 1.5
"""Work that fits a fast core's larger caches may gain more than the coefficient says."""

Scale = tuple[float, float]
"""The coefficients of the slowest and the fastest core type of a host with several."""


def scale_of(topology: Topology) -> Scale | None:
    """The scale of a host; ``None`` if it has one core type, or is not calibrated."""
    coefficients = [t.coefficient for t in topology.core_types if t.coefficient is not None]
    if len(coefficients) < 2 or coefficients[-1] <= coefficients[0]:
        return None
    return coefficients[0], coefficients[-1]


def hinted_sensitivity(hint: float | str | None, scale: Scale | None) -> float | None:
    """The sensitivity that ``amp:efficiency`` means on a host; ``None`` without a hint."""
    if isinstance(hint, float):
        return sensitivity(hint, scale)
    return None if hint is None else HINTS.get(hint)


def sensitivity(speedup: float, scale: Scale | None) -> float | None:
    """The sensitivity of a workload with this speedup; ``None`` on a host without a scale.

    Solves ``speedup = (1 + x (fast - 1)) / (1 + x (slow - 1))`` for ``x``.
    """
    if scale is None:
        return None
    slow, fast = scale
    slope = (fast - 1.0) - speedup * (slow - 1.0)
    if slope <= 0.0:
        return SENSITIVITY_MAX
    return min(max((speedup - 1.0) / slope, 0.0), SENSITIVITY_MAX)


def measured_sensitivity(instance: ReportedInstance, scale: Scale | None) -> float | None:
    """By the mean speedup of its vCPUs; ``None`` if none was measured, or without a scale."""
    speedups = [v.speedup.ratio for v in instance.vcpus if v.speedup is not None]
    return sensitivity(sum(speedups) / len(speedups), scale) if speedups else None


def sensitivity_of(instance: ReportedInstance, scale: Scale | None) -> float | None:
    """By measurement, else by its hint; ``None`` without either."""
    measured = measured_sensitivity(instance, scale)
    return hinted_sensitivity(instance.hint, scale) if measured is None else measured


Profile = tuple[str, str]
"""Flavor and image: instances with the same two are assumed to do similar work."""


def profiles(report: HostReport) -> Mapping[Profile, float]:
    """What a host says of each flavor and image: the median over the instances that it measured.

    Instances without an image are left out, because they may run anything.
    """
    measurements, scale = defaultdict(list), scale_of(report.topology)
    for instance in report.instances if scale else ():
        if instance.image and (own := measured_sensitivity(instance, scale)) is not None:
            measurements[instance.flavor, instance.image].append(own)
    return {profile: statistics.median(measured) for profile, measured in measurements.items()}
