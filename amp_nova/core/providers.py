"""What a host offers in Placement: one provider per core type, in thousandths of a reference core.

Placement claims atomically and knows no pCPUs; the filter knows them and cannot claim. Together
they keep a host from being over-booked by requests that are decided at the same time.
"""

import math
from dataclasses import dataclass

from amp_nova.core.booking import IPS_TRAIT, core_type_trait, provider_name, provider_uuid
from amp_nova.core.topology import Topology

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
