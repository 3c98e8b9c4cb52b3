"""The safe state of every vCPU: what holds without anybody to correct it.

It must be right at whatever moment the agent ends, and for as long as it stays away:

* A booking in reference cores keeps the limit of the core type it is on, whichever that is.
* A booking in Ips gets the nominal limit of that core type: nobody counts its instructions.
* Best effort gets what was there before the agent: no idle class, no place chosen by a policy. A
  core type that its flavor asks for stays.
* What somebody else has in hand is left alone.
"""

from amp_nova.control.entitlement import Entitlement, Entitlements
from amp_nova.model.allocation import SafeState
from amp_nova.model.bandwidth import Bandwidth, bandwidth, period_us
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType, Topology

AS_FOUND = SafeState()
LEFT_ALONE = SafeState(leave=True)


def safe_states(entitlements: Entitlements, topology: Topology) -> dict[VcpuKey, SafeState]:
    """The safe state of every vCPU that is managed in any way, by limit, affinity or idle class."""
    found = {}
    for key, entitlement in entitlements.items():
        if (state := safe_state(entitlement, topology)) is not None:
            found[key] = state
    return found


def safe_state(entitlement: Entitlement, topology: Topology) -> SafeState | None:
    """The safe state of one vCPU; ``None`` if nothing of it is managed."""
    if entitlement.governed_by == "excluded":
        return LEFT_ALONE
    if entitlement.quota is None and entitlement.pcpus is None:
        return AS_FOUND if entitlement.idle else None
    if entitlement.booking.kind != "best_effort":
        return SafeState(entitlement.pcpus, _limits(entitlement, topology))
    if entitlement.governed_by == "flavor" and entitlement.core_type is not None:
        return SafeState(entitlement.allowed)
    return AS_FOUND


def _limits(
    entitlement: Entitlement, topology: Topology
) -> tuple[tuple[frozenset[int], Bandwidth | None], ...]:
    """The limit of a booking on every core type where it can be told."""
    unlimited = entitlement.quota is None or entitlement.quota.bandwidth is None
    if entitlement.booking.kind == "ips" and unlimited:
        return ()
    greatest = max((t.coefficient or 0.0 for t in topology.core_types), default=0.0)
    found = []
    for core_type in topology.core_types:
        share = _share_cores(entitlement, core_type)
        if share is not None and (pcpus := topology.pcpus_of(core_type.name)):
            least = share
            if entitlement.booking.refcores is not None and greatest:
                least = entitlement.booking.refcores / greatest
            found.append((pcpus, bandwidth(share, period_us(min(1.0, least)))))
    return tuple(found)


def _share_cores(entitlement: Entitlement, core_type: CoreType) -> float | None:
    """What a booking is worth on a core type, as a share of one such pCPU; ``None``: unknown."""
    booking, home = entitlement.booking, entitlement.home
    if booking.ips is not None:
        return booking.ips / core_type.nominal_ips if core_type.nominal_ips else None
    if home.cores is not None and core_type.name == home.core_type:
        return home.cores
    if booking.refcores is None or not core_type.coefficient:
        return None
    return booking.refcores / core_type.coefficient
