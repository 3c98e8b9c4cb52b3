# SPDX-License-Identifier: Apache-2.0
"""``openstack amp host``: what hosts offer, what is claimed, and what their agents measure."""

import argparse
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from osc_lib.cli.format_columns import DictColumn, ListDictColumn

from amp_nova.cmd.command import short
from amp_nova.exceptions import ConfigInvalid
from amp_nova.flavor.placement_resources import IPS_TRAIT, PLACEMENT_CLASS, provider_name
from amp_nova.osc import bookings
from amp_nova.osc.cloud import Cloud, by_host
from amp_nova.osc.command import Lister, ShowOne, add_prometheus, prometheus

NO_HOSTS = (
    "no host offers CUSTOM_AMP_MREFCORE in Placement: set [placement] enabled in amp-nova.conf of "
    "the agents"
)
COEFFICIENT = "amp_core_type_coefficient_ratio"
LAST_CYCLE = "amp_cycle_last_success_timestamp_seconds"
DELIVERED = "sum by (host, instance) (amp_host_delivered_refcores)"
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
    roots = []
    for root in providers:
        prefix, below = provider_name(root["name"], ""), children.get(root["uuid"], ())
        uuids = {c["name"]: c["uuid"] for c in below if c["name"].startswith(prefix)}
        if uuids:  # of the agent's providers, by core type
            roots.append((root, {n.removeprefix(prefix): u for n, u in sorted(uuids.items())}))
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        hosts = pool.map(lambda each: _host(cloud, *each), roots)
        return sorted(hosts, key=lambda host: host.node)


def _host(cloud: Cloud, root: Mapping[str, Any], own: Mapping[str, str]) -> Host:
    inventories, usages, traits = _provider(cloud, root["uuid"])
    free = {
        name: int((i["total"] - i["reserved"]) * i["allocation_ratio"]) - usages.get(name, 0)
        for name, i in inventories.items()
    }
    offers = []
    for core_type, uuid in own.items():
        inventories, usages, its = _provider(cloud, uuid)
        units = inventories.get(PLACEMENT_CLASS, {"total": 0, "reserved": 0})
        claimed, counts_ips = usages.get(PLACEMENT_CLASS, 0), IPS_TRAIT in its
        offers.append(Offer(core_type, units["total"], units["reserved"], claimed, counts_ips))
    return Host(root["name"], tuple(offers), free, DISABLED not in traits)


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
    allocations = cloud.placement(f"/allocations/{server}")["allocations"]
    claims = {u: a["resources"].get(PLACEMENT_CLASS, 0) / 1000 for u, a in allocations.items()}
    names = {u: cloud.placement(f"/resource_providers/{u}")["name"] for u, c in claims.items() if c}
    return {names[uuid]: claims[uuid] for uuid in names}


class ListHost(Lister):
    """List hosts with an agent: capacity by core type, in reference cores"""

    _epilog = "example: openstack amp host list -c Host -c Free"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_prometheus(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Headings and one row per host and core type."""
        hosts = read_hosts(self.cloud)
        if not hosts:
            self.log.warning(NO_HOSTS)
        metrics = prometheus(self.cloud, parsed_args, self.log) if hosts else None
        nodes = [host.node for host in hosts]
        coefficients = by_host(metrics, nodes, COEFFICIENT, "core_type")
        delivered = by_host(metrics, nodes, DELIVERED)
        titles = ("Host", "State", "Core Type", "Coefficient", "Capacity", "Claimed", "Free")
        rows = [
            (
                host.node,
                "enabled" if host.enabled else "disabled",
                offer.core_type,
                short(coefficients.get((host.node, offer.core_type))),
                offer.capacity / 1000,
                offer.claimed / 1000,
                offer.free / 1000,
                "yes" if offer.counts_ips else "no",
                short(delivered.get((host.node, ""))),
            )
            for host in hosts
            for offer in host.offers
        ]
        return (*titles, "Counts Ips", "Delivered By Host"), rows


class ShowHost(ShowOne):
    """Show a host: capacity by core type, bookings, and the health of its agent"""

    _epilog = "example: openstack amp host show compute1 --format json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("host", metavar="HOST", help="its hypervisor_hostname")
        add_prometheus(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        hosts = {host.node: host for host in read_hosts(self.cloud)}
        host = hosts.get(parsed_args.host)
        if host is None:
            others = ", ".join(hosts) or NO_HOSTS
            raise ConfigInvalid(f"no host {parsed_args.host!r} has an agent's providers: {others}")
        metrics = prometheus(self.cloud, parsed_args, self.log)

        def value(expression: str, label: str = "") -> dict[str, float]:
            values = by_host(metrics, [host.node], expression, label)
            return {name: number for (_, name), number in values.items()}

        shortfall = value(
            "sum by (host, instance, cause) "
            "(increase(amp_host_shortfall_refcore_seconds_total[1h]))",
            "cause",
        )
        last_s = value(LAST_CYCLE).get("")
        fields = {
            "host": host.node,
            "state": "enabled" if host.enabled else "disabled",
            "core_types": ListDictColumn(_core_types(host, value(COEFFICIENT, "core_type"))),
            "bookings": ListDictColumn(self._bookings(host)),
            "delivered_refcores": short(value(DELIVERED).get("")),
            "shortfall_refcore_seconds_last_hour": DictColumn(
                {cause: short(short_ref_s) for cause, short_ref_s in sorted(shortfall.items())}
            ),
            "calibration_age_s": short(value("time() - amp_calibration_timestamp_seconds").get("")),
            "last_cycle_age_s": None if last_s is None else round(time.time() - last_s, 1),
        }
        return tuple(fields), tuple(fields.values())

    def _bookings(self, host: Host) -> list[dict[str, str]]:
        """Servers on the host that book capacity."""
        rows = []
        for server in self.cloud.servers(all_projects=True):
            booking = server.flavor.booking
            if server.node == host.node and booking is not None and booking.booked:
                words = bookings.described(booking)
                rows.append({"id": server.id, "name": server.name, "booking": words})
        return rows


def _core_types(host: Host, coefficients: dict[str, float]) -> list[dict[str, object]]:
    return [
        {
            "name": offer.core_type,
            "coefficient": short(coefficients.get(offer.core_type)),
            "capacity": offer.capacity / 1000,
            "claimed": offer.claimed / 1000,
            "free": offer.free / 1000,
            "counts_ips": offer.counts_ips,
        }
        for offer in host.offers
    ]
