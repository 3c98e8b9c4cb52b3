"""``openstack amp capacity``: how many more servers of each flavor the cloud takes."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amp_nova.flavor.extra_specs import Booking, examine
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.osc import bookings
from amp_nova.osc.cloud import Flavor, by_host
from amp_nova.osc.command import Lister, add_prometheus, prometheus
from amp_nova.osc.host import COEFFICIENT, NO_HOSTS, Host, Offer, read_hosts
from amp_nova.scheduling.demands import Request, request_of
from amp_nova.scheduling.host_fit import servers_that_fit
from amp_nova.wire.host_report import HostReport, Origin

CAPACITY = "reference cores"
FRAGMENTS = "reference cores of one pCPU"
UNLIMITED = 1 << 30
Booked = Mapping[str, Request]
"""What the servers on a host book, by their ids."""


class ShowCapacity(Lister):
    """Show how many more servers of each flavor fit on all enabled hosts with an agent"""

    _epilog = "example: openstack amp capacity show --flavor half"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``capacity show``."""
        parser.add_argument(
            "--flavor",
            metavar="FLAVOR",
            action="append",
            help="name or id; may be repeated (default: all flavors)",
        )
        parser.add_argument("--host", metavar="HOST", help="on this host alone")
        add_prometheus(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Headings and one row per flavor."""
        names = parsed_args.flavor
        flavors = [self.cloud.flavor(n) for n in names] if names else self.cloud.flavors()
        hosts = [
            host
            for host in read_hosts(self.cloud)
            if host.enabled and parsed_args.host in (None, host.node)
        ]
        if not hosts:
            self.log.warning(NO_HOSTS)
        measured = prometheus(self.cloud, parsed_args, self.log) if hosts else None
        coefficients = by_host(measured, [h.node for h in hosts], COEFFICIENT, "core_type")
        servers = self.cloud.servers(all_projects=True) if hosts else []
        booked: dict[str, dict[str, Request]] = {host.node: {} for host in hosts}
        for server in servers:
            booking = bookings.in_refcores(server.flavor)
            if booking is not None and server.node in booked:
                booked[server.node][server.id] = request_of(booking)
        reports = {host.node: report_of(host, coefficients) for host in hosts}
        if missing := [node for node, report in reports.items() if report is None]:
            self.log.warning(
                "the pCPUs of %s are not known, so fragments count as free: "
                "Prometheus has no %s of its agent",
                ", ".join(missing),
                COEFFICIENT,
            )
        seen = [(host, reports[host.node], booked[host.node]) for host in hosts]
        rows = [_row(flavor, seen) for flavor in flavors]
        return ("Flavor", "VCPUs", "Booking", "Fits", "Limited By"), rows


def _row(flavor: Flavor, hosts: Sequence[tuple[Host, HostReport | None, Booked]]) -> Any:
    booking, errors = examine(flavor.specs, flavor.vcpus)
    words = bookings.words(booking, errors)
    if booking is None:
        return flavor.name, flavor.vcpus, words, 0, "its extra specs"
    results = [fits(flavor, booking, *host) for host in hosts]
    limits = Counter(fit.limit for fit in results).most_common(1)
    total = sum(fit.servers for fit in results)
    return flavor.name, flavor.vcpus, words, total, limits[0][0] if limits else None


@dataclass(frozen=True, slots=True)
class Fits:
    """How many servers fit a host, and which resource limits that number."""

    servers: int
    limit: str


def fits(
    flavor: Flavor, booking: Booking, host: Host, report: HostReport | None, booked: Booked
) -> Fits:
    """How many more servers of a flavor a host takes: by Placement, and by the filter's packing.

    Without a ``report`` the host's pCPUs are unknown, and fragmentation is ignored.
    """
    needs = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.ram_mib, "DISK_GB": flavor.disk_gb}
    limits = [
        Fits(max(0, host.free[name]) // need, name)
        for name, need in needs.items()
        if need and name in host.free
    ]
    if booking.booked:
        units = bookings.claimed(flavor)
        offers = [o for o in host.offers if _may_claim(flavor, booking, o)]
        if units:
            limits.append(Fits(sum(o.free // units for o in offers), CAPACITY))
        elif not offers:
            limits.append(Fits(0, CAPACITY))
    fewest = min(limits, key=lambda fit: fit.servers, default=Fits(UNLIMITED, ""))
    in_refcores = bookings.in_refcores(flavor)
    if report is None or in_refcores is None or not booking.booked:
        return fewest
    packed = servers_that_fit(report, request_of(in_refcores), fewest.servers, booked)
    return fewest if packed == fewest.servers else Fits(packed, FRAGMENTS)


def _may_claim(flavor: Flavor, booking: Booking, offer: Offer) -> bool:
    """Whether a core type has the traits that the flavor requires."""
    counted = offer.counts_ips or all(v.ips is None for v in booking.vcpus)
    return counted and booking.core_type in (None, offer.core_type)


def report_of(host: Host, coefficients: Mapping[tuple[str, str], float]) -> HostReport | None:
    """The host as its agent would report it without instances, from what Placement knows.

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
    total = sum(o.total for o in host.offers)
    return HostReport(
        Origin(host.node, "", 0, 0.0, 0.0),
        Topology(tuple(core_types), tuple(pcpus), core_types[0].name, "Placement"),
        frozenset(p.id for p in pcpus),
        sum(o.reserved for o in host.offers) / total if total else 0.0,
    )
