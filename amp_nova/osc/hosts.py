"""The hosts of a cloud as Placement has them: what each core type offers, and what is claimed."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from amp_nova.flavor.placement_resources import (
    IPS_TRAIT,
    PLACEMENT_CLASS,
    provider_name,
)
from amp_nova.osc.cloud import Cloud

DISABLED = "COMPUTE_STATUS_DISABLED"
REQUESTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Offer:
    """One core type of a host, in thousandths of a reference core.

    ``total`` includes what is ``reserved``.
    """

    core_type: str
    total: int
    reserved: int
    claimed: int
    counts_ips: bool

    @property
    def capacity(self) -> int:
        """What bookings may claim altogether."""
        return self.total - self.reserved

    @property
    def free(self) -> int:
        """What new bookings may claim."""
        return max(0, self.capacity - self.claimed)


@dataclass(frozen=True, slots=True)
class Host:
    """A compute host with an agent; ``free``: what is left of Nova's own resources in Placement."""

    node: str
    offers: tuple[Offer, ...]
    free: Mapping[str, int]
    enabled: bool = True


def read_hosts(cloud: Cloud) -> list[Host]:
    """All hosts with providers of amp-nova, by name."""
    providers = cloud.placement("/resource_providers")["resource_providers"]
    children: dict[str, list[Mapping[str, Any]]] = {}
    for provider in providers:
        children.setdefault(provider["parent_provider_uuid"], []).append(provider)
    roots = [
        (root, found)
        for root in providers
        if (found := _own(root["name"], children.get(root["uuid"], ())))
    ]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        hosts = pool.map(lambda each: _host(cloud, *each), roots)
        return sorted(hosts, key=lambda host: host.node)


def _own(node: str, children: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """UUIDs of the agent's providers, by core type."""
    prefix = provider_name(node, "")
    found = {c["name"]: c["uuid"] for c in children if c["name"].startswith(prefix)}
    return {name.removeprefix(prefix): uuid for name, uuid in sorted(found.items())}


def _host(cloud: Cloud, root: Mapping[str, Any], own: Mapping[str, str]) -> Host:
    inventories, usages, traits = _provider(cloud, root["uuid"])
    free = {
        name: int((i["total"] - i["reserved"]) * i["allocation_ratio"]) - usages.get(name, 0)
        for name, i in inventories.items()
    }
    offers = tuple(_offer(cloud, core_type, uuid) for core_type, uuid in own.items())
    return Host(root["name"], offers, free, DISABLED not in traits)


def _offer(cloud: Cloud, core_type: str, uuid: str) -> Offer:
    inventories, usages, traits = _provider(cloud, uuid)
    found = inventories.get(PLACEMENT_CLASS, {"total": 0, "reserved": 0})
    claimed = usages.get(PLACEMENT_CLASS, 0)
    return Offer(core_type, found["total"], found["reserved"], claimed, IPS_TRAIT in traits)


def _provider(cloud: Cloud, uuid: str) -> tuple[dict[str, Any], dict[str, int], set[str]]:
    """Inventories, usages and traits of a provider."""
    url = f"/resource_providers/{uuid}"
    return (
        cloud.placement(f"{url}/inventories")["inventories"],
        cloud.placement(f"{url}/usages")["usages"],
        set(cloud.placement(f"{url}/traits")["traits"]),
    )


def claimed_by(cloud: Cloud, server: str) -> dict[str, float]:
    """What a server claims, in reference cores, by the name of the provider."""
    found = cloud.placement(f"/allocations/{server}")["allocations"]
    claims = {u: a["resources"].get(PLACEMENT_CLASS, 0) / 1000 for u, a in found.items()}
    names = {u: cloud.placement(f"/resource_providers/{u}")["name"] for u, c in claims.items() if c}
    return {names[uuid]: claims[uuid] for uuid in names}
