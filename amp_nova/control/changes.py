"""The writes that lead from what is in force to what vCPUs are entitled to.

Acting twice changes nothing: an equal value is never written again, because the kernel refills a
group's bandwidth and forgives its debt at every write of a quota.
"""

from collections.abc import Mapping

from amp_nova.control.entitlement import Entitlement
from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.model.observation import Observation, VcpuKey, VcpuReading


def change(reading: VcpuReading, entitlement: Entitlement) -> Change | None:
    """The writes one vCPU needs, or ``None``.

    A limit is lowered before the vCPU moves to a faster core and raised after it has moved to a
    slower one, so that it never exceeds its booking in between.
    """
    steps = []
    if entitlement.pcpus is not None and entitlement.pcpus != reading.pcpus:
        steps.append(Step(pcpus=entitlement.pcpus))
    quota = entitlement.quota
    if quota is not None and quota.bandwidth != reading.bandwidth:
        before, wanted = reading.bandwidth, quota.bandwidth
        lowered = wanted is not None and (before is None or wanted.cores <= before.cores)
        steps.insert(0 if lowered else len(steps), Step(bandwidth=wanted))
    return Change(entitlement.key, tuple(steps), entitlement.reason) if steps else None


def changes(seen: Observation, entitlements: Mapping[VcpuKey, Entitlement]) -> Changes:
    """All writes of a cycle."""
    wanted = []
    idle = {}
    for domain in seen.domains:
        resource = domain.domain.resource
        for reading in domain.vcpus:
            entitlement = entitlements[resource, reading.index]
            if (needed := change(reading, entitlement)) is not None:
                wanted.append(needed)
            if entitlement.idle is not None and domain.idle not in (None, entitlement.idle):
                idle[resource] = entitlement.idle
    return Changes(tuple(wanted), idle)
