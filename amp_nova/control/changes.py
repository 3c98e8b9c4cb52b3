"""The writes that lead from what is in force to what vCPUs are entitled to.

Acting twice changes nothing: an equal value is never written again, because the kernel refills a
group's bandwidth and forgives its debt at every write of a quota.
"""

from collections.abc import Mapping

from amp_nova.control.entitlement import Entitlement, Entitlements
from amp_nova.model.allocation import Allocation, Allocations, Change, Changes, Step


def change(now: Allocation, entitlement: Entitlement) -> Change | None:
    """The writes one vCPU needs, or ``None``.

    A limit is lowered before the vCPU moves to a faster core and raised after it has moved to a
    slower one, so that it never exceeds its booking in between.
    """
    steps = []
    if entitlement.pcpus is not None and entitlement.pcpus != now.pcpus:
        steps.append(Step(pcpus=entitlement.pcpus))
    quota = entitlement.quota
    # A burst is ended with the write of a limit, also of one that is in force already.
    burst = quota is not None and quota.bandwidth is not None and now.burst_us > 0
    if quota is not None and (quota.bandwidth != now.bandwidth or burst):
        before, wanted = now.bandwidth, quota.bandwidth
        lowered = wanted is not None and (before is None or wanted.cores <= before.cores)
        steps.insert(0 if lowered else len(steps), Step(bandwidth=wanted))
    return Change(entitlement.key, tuple(steps), entitlement.reason) if steps else None


def changes(
    now: Allocations, idle_now: Mapping[str, bool | None], entitlements: Entitlements
) -> Changes:
    """All writes of a cycle; ``idle_now``: which instances run in the idle class."""
    wanted = []
    idle: dict[str, bool] = {}
    for key, entitlement in entitlements.items():
        if (needed := change(now[key], entitlement)) is not None:
            wanted.append(needed)
        if entitlement.idle is not None and idle_now[key[0]] not in (None, entitlement.idle):
            idle[key[0]] = entitlement.idle
    return Changes(tuple(wanted), idle)
