"""What capacity is left to book on this host, and which bookings are not enforced as booked.

Reasons are short words for metrics and alerts; ``amp-nova explain`` has the sentences.
"""

from collections.abc import Mapping

from amp_nova.agent.cycle import Cycle, VcpuRecord
from amp_nova.agent.publish.host_info import HostInfo


def headroom_refcores(cycle: Cycle, info: HostInfo) -> Mapping[str, float]:
    """Unbooked capacity by core type, in reference cores, without the operator's reserve.

    A core type whose coefficient is unknown is left out. The capacity of over-booked vCPUs is not
    subtracted, because they have no place.
    """
    topology, bookable = cycle.topology, info.bookable_of(cycle.topology)
    cores = {
        t.name: (1.0 - info.reserve_ratio) * len(topology.pcpus_of(t.name) & bookable)
        for t in topology.core_types
    }
    for entitlement in cycle.entitlements.values():
        home = entitlement.home
        if home.pcpu in bookable and home.core_type in cores and home.cores is not None:
            cores[home.core_type] -= home.cores
    return {
        t.name: cores[t.name] * t.coefficient
        for t in topology.core_types
        if t.coefficient is not None
    }


def unenforced(vcpu: VcpuRecord) -> dict[str, float]:
    """The reasons why a booking is not enforced as booked, each with value 1; empty if it is.

    ``failed``: the vCPU could not be changed; ``excluded``: it is paused, or somebody else sets its
    limits; ``unverifiable``: its instructions are not counted; ``no_core_type``: no core type of
    the host can serve it, or its coefficient is unknown; ``over_booked``: it found no capacity;
    ``below_minimum``: the kernel accepts no limit as low as the booking.
    """
    entitlement = vcpu.entitlement
    booking, home = entitlement.booking, entitlement.home
    if booking.kind == "best_effort" or (entitlement.note is None and vcpu.failure is None):
        return {}
    found = ["failed"] if vcpu.failure else []
    if entitlement.note is None:
        return dict.fromkeys(found, 1)
    if entitlement.governed_by == "excluded":
        found.append("excluded")
    else:
        uncounted = booking.ips is not None and vcpu.reading.counts is None
        found += ["unverifiable"] if uncounted else []
        if home.cores is not None and home.pcpu is None:
            found.append("over_booked")
        elif home.cores is None and not uncounted:
            found.append("no_core_type")
        elif not uncounted:
            found.append("below_minimum")
    return dict.fromkeys(found, 1)


def problems(cycle: Cycle) -> dict[str, str]:
    """What is wrong with instances, by UUID.

    ``booking`` if its extra specs are invalid, ``host`` if it could not be read completely.
    """
    found = {}
    for domain in cycle.domains:
        if domain.problem:
            booking = cycle.bookings[domain.domain.resource].problem
            found[domain.domain.resource] = "booking" if booking else "host"
    return found
