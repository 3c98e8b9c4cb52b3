# SPDX-License-Identifier: Apache-2.0
"""Resources in Placement: what a booking claims, and what each core type of a host provides.

The unit is a thousandth of a reference core. Placement claims atomically but does not know pCPUs;
the filter knows pCPUs but cannot claim. Together they prevent concurrent requests from
over-booking a host.
"""

import math
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from amp_nova.flavor.extra_specs import Booking

PLACEMENT_GROUP = "AMP"
PLACEMENT_CLASS = "CUSTOM_AMP_MREFCORE"
CLAIM_PREFIXES = (f"resources_{PLACEMENT_GROUP}:", f"trait_{PLACEMENT_GROUP}:")
IPS_TRAIT = "CUSTOM_AMP_IPS"
"""Trait of the providers of hosts that count instructions."""
REFCORES_MAX, IPS_MAX = 100.0, 1e12
"""More than any core gives."""
AMOUNT_MAX = 0x7FFFFFFF
"""The greatest inventory that Placement accepts."""


def placement(booking: Booking, reference_ips: float | None = None) -> dict[str, str]:
    """The flavor properties with which Placement claims the booking.

    ``reference_ips``: the Ips of the reference core, by which bookings in Ips are converted to
    reference cores. Without it, an instance that books Ips claims nothing.
    """
    shares = []
    for vcpu in booking.vcpus:
        if vcpu.kind == "ips" and reference_ips is None:
            return {}
        shares.append(vcpu.refcores or (vcpu.ips or 0.0) / (reference_ips or 1.0))
    if not booking.booked:
        return {}
    # Placement counts whole units: round up, but not because of rounding errors in the sum.
    units = max(1, math.ceil(math.fsum(shares) * 1000 - 1e-6))
    properties = {f"resources_{PLACEMENT_GROUP}:{PLACEMENT_CLASS}": str(units)}
    if booking.core_type is not None:
        trait = core_type_trait(booking.core_type)
        properties[f"trait_{PLACEMENT_GROUP}:{trait}"] = "required"
    if any(v.kind == "ips" for v in booking.vcpus):
        properties[f"trait_{PLACEMENT_GROUP}:{IPS_TRAIT}"] = "required"
    return properties


def remarks(booking: Booking) -> Iterator[str]:
    """A sentence for each thing that is allowed in a flavor but cannot be meant."""
    if booking.burst_s and not booking.booked:
        yield "amp:burst_s has no effect without a booking: add amp:pref_core or amp:ips"
    if booking.limit == "soft" and not booking.booked:
        yield "amp:limit has no effect without a booking: nothing limits best effort"
    if any((v.refcores or 0.0) > REFCORES_MAX or (v.ips or 0.0) > IPS_MAX for v in booking.vcpus):
        yield (
            f"a vCPU runs on one core at a time, and no core gives more than {REFCORES_MAX:g} "
            "reference cores or 1T Ips: no host will take it"
        )


def claim_specs(specs: Mapping[str, str]) -> dict[str, str]:
    """The keys of a flavor by which Placement claims its booking."""
    return {k: v for k, v in specs.items() if k.startswith(CLAIM_PREFIXES)}


def claims(specs: Mapping[str, str]) -> bool:
    """Whether a flavor with these extra specs claims capacity in Placement."""
    return any(key.endswith(f":{PLACEMENT_CLASS}") for key in specs)


def core_type_trait(core_type: str) -> str:
    """The trait of a core type's providers."""
    return "CUSTOM_AMP_CORE_" + re.sub(r"[^A-Z0-9_]", "_", core_type.upper())


def provider_name(node: str, core_type: str) -> str:
    """Name of the provider of a core type on the host with hypervisor_hostname ``node``."""
    return f"{node}_amp_{core_type}"


def provider_uuid(node: str, core_type: str) -> str:
    """UUID of that provider, derived from its name so that Placement need not be queried."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, provider_name(node, core_type)))


@dataclass(frozen=True, slots=True)
class Provider:
    """One core type of a host. It accepts no claim if ``reserved`` equals ``total``."""

    uuid: str
    name: str
    total: int
    reserved: int
    traits: frozenset[str]


def providers(
    node: str,
    bookable_refcores: Mapping[str, float],
    reserve_ratio: float = 0.0,
    counts_ips: bool = False,
    unclaimed_refcores: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Provider, ...]:
    """The providers of a host, one for each core type that has a coefficient.

    A core type whose pCPUs are all offline keeps its provider, with everything reserved: it may
    still have claims.

    Args:
        node: the host's hypervisor_hostname.
        bookable_refcores: reference cores that can be booked on each core type that has a
            coefficient (``effective_speed.bookable_refcores``).
        reserve_ratio: share of each core type that is not offered.
        counts_ips: whether the host counts instructions.
        unclaimed_refcores: what instances without a claim book on each core type: reserved as well.
    """
    offered = []
    for core_type, refcores in bookable_refcores.items():
        whole = min(AMOUNT_MAX, math.floor(1000 * refcores + 1e-6))
        sold = math.floor(whole * (1.0 - reserve_ratio) + 1e-6)
        sold -= math.ceil(1000 * unclaimed_refcores.get(core_type, 0.0) - 1e-6)
        traits = {core_type_trait(core_type)} | ({IPS_TRAIT} if counts_ips else set())
        offered.append(
            Provider(
                provider_uuid(node, core_type),
                provider_name(node, core_type),
                max(1, whole),  # Placement does not accept 0
                max(1, whole) - max(0, sold),
                frozenset(traits),
            )
        )
    return tuple(offered)
