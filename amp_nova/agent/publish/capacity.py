"""What capacity is left to book on this host, and which bookings are not enforced as booked.

Reasons are short words for metrics and alerts; ``amp-nova explain`` has the sentences.
"""

import math
from collections import defaultdict
from collections.abc import Mapping

from amp_nova.admission import free_cores
from amp_nova.admission.free_cores import FreeCores, Option
from amp_nova.admission.packing import least_refcores
from amp_nova.agent.cycle import Cycle, VcpuRecord
from amp_nova.agent.publish.host_info import HostInfo
from amp_nova.flavor.extra_specs import examine
from amp_nova.flavor.placement_resources import claims
from amp_nova.hardware.effective_speed import effective_speed, for_admission, thread_of_empty_core
from amp_nova.model.topology import CoreType


def headroom_refcores(cycle: Cycle, info: HostInfo) -> Mapping[str, float]:
    """Unbooked capacity by core type, in reference cores, without the operator's reserve.

    A core type whose coefficient is unknown is left out. The capacity of over-booked vCPUs is not
    subtracted, because they have no place. Free threads count by what they are worth next to a busy
    sibling, as in ``bookable_refcores``.
    """
    topology = for_admission(cycle.topology, info.smt)
    free = free_cores.empty(topology, info.reserve_ratio)
    for home in (e.home for e in cycle.entitlements.values()):
        if home.pcpu in free.cores and home.cores is not None:
            shared = math.inf if home.whole_core else home.cores
            free.take(Option(home.cores, shared, frozenset({home.pcpu})), home.pcpu)
    found = {t.name: 0.0 for t in topology.core_types if t.coefficient is not None}
    for pcpu in info.bookable_of(topology):
        core_type = topology.type_of(pcpu)
        if core_type is not None and core_type.name in found:
            found[core_type.name] += max(0.0, free.cores[pcpu]) * _worth(core_type, pcpu, free)
    return found


def unclaimed_refcores(cycle: Cycle) -> Mapping[str, float]:
    """What instances without a claim in Placement book, by the core type that they are on.

    Instances that do not run count on the core type that they require, else on the slowest.
    """
    topology, found = cycle.topology, defaultdict[str, float](float)
    usual = next((t.name for t in topology.core_types if t.coefficient is not None), "")
    for reading in (*cycle.observation.domains, *cycle.observation.inactive):
        domain, known = reading.domain, cycle.bookings.get(reading.domain.resource)
        booking = known.booking if known else examine(domain.specs, domain.vcpus)[0]
        if booking is None or claims(domain.specs):
            continue
        for vcpu in booking.vcpus:
            entitlement = cycle.entitlements.get((domain.resource, vcpu.index))
            on = entitlement.home.core_type if entitlement else None
            refcores = vcpu.refcores if vcpu.ips is None else least_refcores(vcpu.ips, topology)
            found[on or booking.core_type or usual] += refcores or 0.0
    return found


def _worth(core_type: CoreType, pcpu: int, free: FreeCores) -> float:
    """What all of a pCPU's time is worth to further bookings, in reference cores."""
    siblings = () if pcpu in free.whole else free.siblings.get(pcpu, ())
    if free.core_is_empty(pcpu):
        return thread_of_empty_core(core_type, 1 + len(siblings))
    return effective_speed(core_type, 1.0 if siblings else 0.0) or 0.0


def unenforced(vcpu: VcpuRecord) -> dict[str, float]:
    """The reasons why a booking is not enforced as booked, each with value 1; empty if it is.

    ``failed``: the vCPU could not be changed; ``excluded``: it is paused, or somebody else sets its
    limits; ``unverifiable``: its instructions are not counted; ``no_core_type``: no core type of
    the host can serve it, or its coefficient is unknown; ``over_booked``: it found no capacity;
    ``below_minimum``: the kernel accepts no limit as low as the booking.
    """
    entitlement = vcpu.entitlement
    booking, home = entitlement.booking, entitlement.home
    if booking.kind == "best_effort":
        return {}
    found = ["failed"] if vcpu.failure else []
    if entitlement.note is not None and entitlement.governed_by == "excluded":
        found.append("excluded")
    elif entitlement.note is not None:
        uncounted = booking.ips is not None and vcpu.reading.counts is None
        found += ["unverifiable"] if uncounted else []
        if home.cores is not None and home.pcpu is None:
            found.append("over_booked")
        elif home.cores is None and not uncounted:
            found.append("no_core_type")
        elif not uncounted:
            found.append("below_minimum")
    return dict.fromkeys(found, 1)
