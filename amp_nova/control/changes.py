"""The writes that turn what is in force into what vCPUs are entitled to.

Changes are idempotent. An equal value is never written again, because with every write of a quota
the kernel refills the group's bandwidth and forgives its debt.
"""

from collections.abc import Mapping

from amp_nova.control.entitlement import Entitlement, Entitlements
from amp_nova.model.allocation import Allocation, Allocations, Change, Changes
from amp_nova.model.bandwidth import Step


def change(now: Allocation, entitlement: Entitlement) -> Change | None:
    """The writes that one vCPU needs; ``None`` if it needs none.

    A limit is lowered before the vCPU moves to a faster core and raised after it has moved to a
    slower one, so that it never exceeds its booking in between.
    """
    steps = []
    if entitlement.pcpus is not None and entitlement.pcpus != now.pcpus:
        steps.append(Step(pcpus=entitlement.pcpus))
    quota = entitlement.quota
    # Writing a limit ends a burst, even if that limit is in force already.
    burst = quota is not None and quota.bandwidth is not None and now.burst_us > 0
    if quota is not None and (quota.bandwidth != now.bandwidth or burst):
        before, wanted = now.bandwidth, quota.bandwidth
        lowered = wanted is not None and (before is None or wanted.cores <= before.cores)
        steps.insert(0 if lowered else len(steps), Step(bandwidth=wanted))
    return Change(entitlement.key, tuple(steps), entitlement.reason) if steps else None


def changes(
    now: Allocations, weights_now: Mapping[str, int | None], entitlements: Entitlements
) -> Changes:
    """All writes of a cycle; ``weights_now``: the CPU weight of each instance."""
    wanted = []
    weights: dict[str, int] = {}
    for key, entitlement in entitlements.items():
        if (needed := change(now[key], entitlement)) is not None:
            wanted.append(needed)
        weight = entitlement.cpu_weight
        if weight is not None and weights_now[key[0]] not in (None, weight):
            weights[key[0]] = weight
    return Changes(tuple(wanted), weights)
