"""What a host offers in Placement: one provider per core type, in thousandths of a reference core.

Placement claims atomically and knows no pCPUs; the filter knows them and cannot claim. Together
they keep a host from being over-booked by requests that are decided at the same time.
"""

import math
import re
import uuid
from dataclasses import dataclass

from amp_nova.flavor.extra_specs import Booking
from amp_nova.model.topology import Topology

PLACEMENT_GROUP = "AMP"


PLACEMENT_CLASS = "CUSTOM_AMP_MREFCORE"


IPS_TRAIT = "CUSTOM_AMP_IPS"
"""Trait of providers on hosts that count instructions."""


def placement(booking: Booking, reference_ips: float | None = None) -> dict[str, str]:
    """The flavor properties that make Placement claim the booking, race-free.

    ``reference_ips`` (Ips of the reference core) converts Ips bookings; without it an instance that
    books Ips claims nothing, since its reference cores are not known.
    """
    shares = []
    for vcpu in booking.vcpus:
        if vcpu.kind == "ips" and reference_ips is None:
            return {}
        shares.append(vcpu.refcores or (vcpu.ips or 0.0) / (reference_ips or 1.0))
    if not booking.booked:
        return {}
    # Placement counts whole units: round up, but not for the noise of adding decimals.
    units = max(1, math.ceil(math.fsum(shares) * 1000 - 1e-6))
    properties = {f"resources_{PLACEMENT_GROUP}:{PLACEMENT_CLASS}": str(units)}
    if booking.core_type is not None:
        trait = core_type_trait(booking.core_type)
        properties[f"trait_{PLACEMENT_GROUP}:{trait}"] = "required"
    if any(v.kind == "ips" for v in booking.vcpus):
        properties[f"trait_{PLACEMENT_GROUP}:{IPS_TRAIT}"] = "required"
    return properties


def core_type_trait(core_type: str) -> str:
    """The trait of Placement providers of a core type."""
    return "CUSTOM_AMP_CORE_" + re.sub(r"[^A-Z0-9_]", "_", core_type.upper())


def provider_name(node: str, core_type: str) -> str:
    """Name of the Placement provider of a host's core type; ``node``: its hypervisor_hostname."""
    return f"{node}_amp_{core_type}"


def provider_uuid(node: str, core_type: str) -> str:
    """UUID of that provider: whoever knows the host knows it, without asking Placement."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, provider_name(node, core_type)))


AMOUNT_MAX = 0x7FFFFFFF
"""Placement's greatest inventory."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One core type of a host. ``reserved`` of ``total`` is not for sale; all of it: closed."""

    uuid: str
    name: str
    total: int
    reserved: int
    traits: frozenset[str]


def providers(
    node: str,
    topology: Topology,
    bookable: frozenset[int],
    reserve_ratio: float = 0.0,
    counts_ips: bool = False,
) -> tuple[Provider, ...]:
    """What a host offers now; a core type without a coefficient offers nothing.

    A core type all of whose pCPUs are offline is closed and stays: what is claimed there is not
    gone.
    """
    found = []
    for core_type in topology.core_types:
        if core_type.coefficient is None:
            continue
        pcpus = len(topology.pcpus_of(core_type.name) & bookable)
        whole = min(AMOUNT_MAX, math.floor(1000 * core_type.coefficient * pcpus + 1e-6))
        sold = math.floor(whole * (1.0 - reserve_ratio) + 1e-6)
        traits = {core_type_trait(core_type.name)} | ({IPS_TRAIT} if counts_ips else set())
        found.append(
            Provider(
                provider_uuid(node, core_type.name),
                provider_name(node, core_type.name),
                max(1, whole),  # Placement takes no inventory of nothing
                max(1, whole) - sold,
                frozenset(traits),
            )
        )
    return tuple(found)
