# SPDX-License-Identifier: Apache-2.0
"""``openstack amp capacity``: how many more servers of each flavor the cloud takes."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osc_lib.cli.format_columns import DictColumn

from amp_nova.admission import free_cores
from amp_nova.admission.free_cores import FreeCores
from amp_nova.admission.packing import Demand, place
from amp_nova.exceptions import ConfigInvalid
from amp_nova.flavor.extra_specs import Booking
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.osc import bookings
from amp_nova.osc.cloud import Cloud, Flavor, by_host
from amp_nova.osc.command import Lister, ShowOne, add_prometheus, prometheus
from amp_nova.osc.host import COEFFICIENT, NO_HOSTS, Host, read_hosts

CAPACITY = "reference cores"
FRAGMENTS = "reference cores of one pCPU"
INVALID = "its extra specs"
SHORT = ("Flavor", "VCPUs", "Booking", "Fits", "Limited By")
LONG = ("RAM", "Disk", "Claimed Refcores", "Hosts", "Hosts By Limit")
UNLIMITED = 1 << 30
PCPUS_MAX = 1 << 13


class ListCapacity(Lister):
    """List flavors, and how many more servers of each fit on all enabled hosts with an agent"""

    _epilog = "example: openstack amp capacity list --flavor half --long"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--flavor",
            metavar="FLAVOR",
            action="append",
            help="name or id; may be repeated (default: all flavors)",
        )
        parser.add_argument(
            "--long", action="store_true", help="also what a server needs, and the hosts that fit"
        )
        _add_where(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        names = parsed_args.flavor
        flavors = [self.cloud.flavor(n) for n in names] if names else self.cloud.flavors()
        hosts = _hosts(self.cloud, parsed_args, self.log)
        rows = [_shown(flavor, _fits_by_host(flavor, hosts)) for flavor in flavors]
        headings = (*SHORT, *LONG) if parsed_args.long else SHORT
        return headings, [tuple(values[heading] for heading in headings) for values in rows]


class ShowCapacity(ShowOne):
    """Show how many more servers of a flavor fit, and on which hosts"""

    _epilog = "example: openstack amp capacity show half"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="FLAVOR", help="name or id")
        _add_where(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        flavor = self.cloud.flavor(parsed_args.name)
        by_host = _fits_by_host(flavor, _hosts(self.cloud, parsed_args, self.log))
        shown = _shown(flavor, by_host).items()
        fields = {heading.lower().replace(" ", "_"): value for heading, value in shown}
        fields["fits_by_host"] = DictColumn({h: fit.servers for h, fit in by_host.items()})
        return tuple(fields), tuple(fields.values())


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="HOST", help="on this host alone")
    add_prometheus(parser)


@dataclass(frozen=True, slots=True)
class Fits:
    """How many servers fit a host, and which resource limits that number."""

    servers: int
    limit: str


Pcpus = tuple[Topology, FreeCores]
"""The pCPUs of a host, and what the bookings of its servers leave of them."""
HostPcpus = tuple[Host, Pcpus | None]


def _hosts(cloud: Cloud, args: argparse.Namespace, log: Any) -> Sequence[HostPcpus]:
    """Enabled hosts with an agent, and their pCPUs where these are known."""
    every = read_hosts(cloud)
    if args.host is not None and args.host not in (known := [h.node for h in every]):
        others = ", ".join(known) or NO_HOSTS
        raise ConfigInvalid(f"no host {args.host!r} has an agent's providers: {others}")
    hosts = [h for h in every if h.enabled and args.host in (None, h.node)]
    if not hosts:
        log.warning(NO_HOSTS)
        return []
    metrics = prometheus(cloud, args, log)
    coefficients = by_host(metrics, [h.node for h in hosts], COEFFICIENT, "core_type")
    demands: dict[str, list[Demand]] = {host.node: [] for host in hosts}
    for server in cloud.servers(all_projects=True):
        booking = bookings.in_refcores(server.flavor)
        if booking is not None and server.node in demands:
            demands[server.node] += _demands(booking, server.id)
    pairs = [(host, _pcpus(host, coefficients, demands[host.node])) for host in hosts]
    if missing := [host.node for host, pcpus in pairs if pcpus is None]:
        log.warning(
            "the pCPUs of %s are not known, so fragments count as free: "
            "Prometheus has no %s of its agent",
            ", ".join(missing),
            COEFFICIENT,
        )
    return pairs


def _demands(booking: Booking, server: str = "") -> list[Demand]:
    everywhere = frozenset(range(PCPUS_MAX))
    return [
        Demand((server, v.index), v.refcores, everywhere, booking.core_type)
        for v in booking.vcpus
        if v.refcores is not None
    ]


def _fits_by_host(flavor: Flavor, hosts: Sequence[HostPcpus]) -> dict[str, Fits]:
    booking = flavor.booking
    return {
        host.node: Fits(0, INVALID) if booking is None else fits(flavor, booking, host, pcpus)
        for host, pcpus in hosts
    }


def _shown(flavor: Flavor, by_host: Mapping[str, Fits]) -> dict[str, object]:
    """What is shown of a flavor, by heading."""
    units = bookings.claimed(flavor)
    limits = Counter(fit.limit for fit in by_host.values()).most_common()
    return {
        "Flavor": flavor.name,
        "VCPUs": flavor.vcpus,
        "RAM": flavor.ram_mib,
        "Disk": flavor.disk_gb,
        "Booking": bookings.words(flavor),
        "Claimed Refcores": None if units is None else units / 1000,
        "Fits": sum(fit.servers for fit in by_host.values()),
        "Limited By": limits[0][0] if limits else None,
        "Hosts": sum(fit.servers > 0 for fit in by_host.values()),
        "Hosts By Limit": DictColumn(dict(limits)),
    }


def fits(flavor: Flavor, booking: Booking, host: Host, pcpus: Pcpus | None) -> Fits:
    """How many more servers of a flavor a host takes: by Placement, and by packing.

    If the host's pCPUs are unknown, fragmentation is ignored.
    """
    needs = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.ram_mib, "DISK_GB": flavor.disk_gb}
    limits = [
        Fits(max(0, host.free[name]) // need, name)
        for name, need in needs.items()
        if need and name in host.free
    ]
    if booking.booked:
        units = bookings.claimed(flavor)
        in_ips = any(v.ips is not None for v in booking.vcpus)
        offers = [
            o  # of core types that have the traits that the flavor requires
            for o in host.offers
            if booking.core_type in (None, o.core_type) and (o.counts_ips or not in_ips)
        ]
        if units:
            limits.append(Fits(sum(o.free // units for o in offers), CAPACITY))
        elif not offers:
            limits.append(Fits(0, CAPACITY))
    fewest = min(limits, key=lambda fit: fit.servers, default=Fits(UNLIMITED, ""))
    in_refcores = bookings.in_refcores(flavor)
    if pcpus is None or in_refcores is None or not booking.booked:
        return fewest
    (topology, free), server = pcpus, _demands(in_refcores)
    for count in range(fewest.servers):
        packing = place(server, topology, free)
        if not packing.complete:
            return Fits(count, FRAGMENTS)
        free = packing.free
    return fewest


def _pcpus(
    host: Host, coefficients: Mapping[tuple[str, str], float], demands: Sequence[Demand]
) -> Pcpus | None:
    """The pCPUs of a host, from what Placement knows.

    ``None`` if the coefficient of a core type is unknown, as inventories are sums over pCPUs.
    """
    core_types: list[CoreType] = []
    pcpus: list[PCpu] = []
    for offer in host.offers:
        coefficient = coefficients.get((host.node, offer.core_type))
        if coefficient is None:
            return None
        core_types.append(CoreType(offer.core_type, coefficient))
        count = round(offer.total / (1000 * coefficient))
        pcpus += [PCpu(len(pcpus) + n, offer.core_type) for n in range(count)]
    core_types.sort(key=lambda t: t.coefficient or 0.0)
    topology = Topology(tuple(core_types), tuple(pcpus), core_types[0].name, "Placement")
    total = sum(o.total for o in host.offers)
    reserved = sum(o.reserved for o in host.offers) / total if total else 0.0
    return topology, place(demands, topology, free_cores.empty(topology, reserved)).free
