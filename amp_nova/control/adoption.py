"""Adopts the limits that an agent finds in force when it starts or resumes control.

A limit below the booking is raised to the booking at once. Every other change is made step by step,
so that no guest notices the restart.
"""

from collections.abc import Collection
from dataclasses import replace

from msgspec import structs

from amp_nova.control.entitlement import Entitlement, Entitlements
from amp_nova.model.allocation import Allocations
from amp_nova.model.bandwidth import TOLERANCE, Bandwidth, bandwidth
from amp_nova.model.observation import VcpuKey

STEP_RATIO = 0.1
"""The most by which an adopted limit may change in one cycle, relative to its value."""


def eased(
    entitlements: Entitlements, now: Allocations, easing: Collection[VcpuKey] | None
) -> tuple[Entitlements, frozenset[VcpuKey]]:
    """Entitlements whose adopted limits change step by step, and the vCPUs still to be eased.

    ``easing``: the second result of the previous cycle; ``None`` adopts every limit in force.
    """
    if easing is None:
        easing = [key for key, allocation in now.items() if allocation.bandwidth is not None]
    found, left = dict(entitlements), set()
    for key in easing:
        entitlement = entitlements.get(key)
        quota = entitlement.quota if entitlement is not None else None
        limit = now[key].bandwidth if key in now else None
        if entitlement is None or quota is None or limit is None or quota.bandwidth == limit:
            continue
        first = _step(entitlement, limit, quota.bandwidth)
        if first != quota.bandwidth:
            left.add(key)
            found[key] = structs.replace(entitlement, quota=replace(quota, bandwidth=first))
    return found if left else entitlements, frozenset(left)


def _step(entitlement: Entitlement, limit: Bandwidth, wanted: Bandwidth | None) -> Bandwidth | None:
    """The next limit on the way from the limit in force to the wanted one."""
    now, target = min(1.0, limit.cores), 1.0 if wanted is None else wanted.cores
    booked = entitlement.home.cores
    toward = now if booked is None else min(max(booked, min(now, target)), max(now, target))
    low, high = (1.0 - STEP_RATIO) * now, (1.0 + STEP_RATIO) * now
    reached = min(max(target, min(low, toward)), max(high, toward))
    if abs(reached - target) <= TOLERANCE:
        return wanted
    period = limit.period_us if wanted is None else wanted.period_us
    return bandwidth(reached, period)
