# SPDX-License-Identifier: Apache-2.0
"""The writes that turn what is in force into what vCPUs are entitled to, and their safe states.

Changes are idempotent. An equal value is never written again, because with every write of a quota
the kernel refills the group's bandwidth and forgives its debt.

The safe state of a vCPU is what is right without an agent to correct it. It must be right whenever
the agent ends, and for as long as no agent runs:

* A booking in reference cores gets the limit for the core type that the vCPU is on.
* A booking in Ips gets the nominal limit of that core type, because its instructions are not
  counted without an agent.
* Best effort gets back the affinity that the agent found, instead of one chosen by a policy. It
  stays on the core type that its flavor requires.
* CPU weights stay: they are right without an agent.
* An excluded instance is left alone; if only its affinity is left alone, its booking has the limit
  for the pCPUs that it is on, on several core types the lowest.
"""

from collections.abc import Mapping

from amp_nova.control.entitlement import Entitlement, Entitlements, share_cores
from amp_nova.model.allocation import Allocation, Allocations, Change, Changes
from amp_nova.model.bandwidth import Bandwidth, SafeState, Step, bandwidth, period_us
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import Topology

AS_FOUND = SafeState()
LEFT_ALONE = SafeState(leave=True)


def change(now: Allocation, entitlement: Entitlement) -> Change | None:
    """The writes that one vCPU needs; ``None`` if it needs none.

    A limit is lowered before the vCPU moves to a faster core and raised after it has moved to a
    slower one, so that it never exceeds its booking in between.
    """
    steps = []
    if entitlement.pcpus is not None and entitlement.pcpus != now.pcpus:
        steps.append(Step(pcpus=entitlement.pcpus))
    before, limit = now.bandwidth, entitlement.limit
    # Writing a limit ends a burst, even if that limit is in force already.
    burst = limit is not None and now.burst_us > 0
    if entitlement.share is not None and (limit != before or burst):
        lowered = limit is not None and (before is None or limit.cores <= before.cores)
        steps.insert(0 if lowered else len(steps), Step(bandwidth=limit))
    return Change(entitlement.key, tuple(steps), entitlement.reason) if steps else None


def changes(
    now: Allocations, weights_now: Mapping[str, int | None], entitlements: Entitlements
) -> Changes:
    """All writes of a cycle; ``weights_now``: the CPU weight of each instance."""
    writes = []
    weights: dict[str, int] = {}
    for key, entitlement in entitlements.items():
        if (write := change(now[key], entitlement)) is not None:
            writes.append(write)
        weight = entitlement.cpu_weight
        if weight is not None and weights_now[key[0]] not in (None, weight):
            weights[key[0]] = weight
    return Changes(tuple(writes), weights)


def safe_states(entitlements: Entitlements, topology: Topology) -> dict[VcpuKey, SafeState]:
    """The safe state of every vCPU whose limit or affinity the agent manages."""
    states = {}
    for key, entitlement in entitlements.items():
        if (state := safe_state(entitlement, topology)) is not None:
            states[key] = state
    return states


def safe_state(entitlement: Entitlement, topology: Topology) -> SafeState | None:
    """The safe state of one vCPU; ``None`` if the agent does not manage it."""
    best_effort = entitlement.booking.kind == "best_effort"
    if entitlement.governed_by == "excluded" and (entitlement.share is None or best_effort):
        return LEFT_ALONE
    if entitlement.share is None and entitlement.pcpus is None:
        return None
    if not best_effort:
        return SafeState(entitlement.pcpus, _limits(entitlement, topology))
    if entitlement.governed_by == "flavor" and entitlement.core_type is not None:
        return SafeState(entitlement.allowed)
    return AS_FOUND


def _limits(
    entitlement: Entitlement, topology: Topology
) -> tuple[tuple[frozenset[int], Bandwidth | None], ...]:
    """The limit of a booking on every core type for which it can be computed."""
    unlimited = entitlement.share is None or entitlement.share.cores is None
    if entitlement.booking.kind == "ips" and unlimited:
        return ()
    usual = entitlement.share.period_us if entitlement.share else None
    limits = []
    for core_type in topology.core_types:
        share = share_cores(entitlement, core_type)
        if share is not None and (pcpus := topology.pcpus_of(core_type.name)):
            limits.append((pcpus, bandwidth(share, usual or period_us(min(1.0, share)))))
    if entitlement.governed_by == "excluded" and limits:
        everywhere = frozenset(p.id for p in topology.pcpus)
        lowest = min((limit for _, limit in limits), key=lambda x: 1.0 if x is None else x.cores)
        limits.append((everywhere, lowest))
    return tuple(limits)
