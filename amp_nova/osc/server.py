# SPDX-License-Identifier: Apache-2.0
"""``openstack amp server``: what servers book, claim and get."""

import argparse
import contextlib
from typing import Any

from osc_lib.cli.format_columns import DictColumn

from amp_nova.cmd.command import short
from amp_nova.osc import bookings
from amp_nova.osc.cloud import Forbidden, by_label
from amp_nova.osc.command import Lister, ShowOne, add_prometheus, prometheus
from amp_nova.osc.host import claimed_by

DELIVERED_REFCORES = "sum by (resource) (amp_instance_delivered_refcores)"
DELIVERED_IPS = "sum by (resource) (amp_instance_delivered_ips)"
DELIVERED_RATIO = (
    "sum by (resource) (increase(amp_instance_delivered_ratio_sum[5m])) / "
    "(sum by (resource) (increase(amp_instance_delivered_ratio_count[5m])) > 0)"
)


class ListServer(Lister):
    """List servers that book capacity, and what they get"""

    _epilog = "example: openstack amp server list --all-projects --sort-column 'Delivered Ratio'"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--all-projects", action="store_true", help="of all projects (admin)")
        parser.add_argument(
            "--project", metavar="PROJECT", help="of this project, by name or id (admin)"
        )
        parser.add_argument(
            "--project-domain", metavar="DOMAIN", help="domain of PROJECT, if others have its name"
        )
        parser.add_argument(
            "--best-effort", action="store_true", help="also those without a booking"
        )
        parser.add_argument("--host", metavar="HOST", help="only those on this host (admin)")
        add_prometheus(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        project = parsed_args.project
        if project is not None:
            project = self.cloud.project(project, parsed_args.project_domain)
        servers = self.cloud.servers(all_projects=parsed_args.all_projects, project=project)
        metrics = prometheus(self.cloud, parsed_args, self.log)
        refcores = by_label(metrics, "resource", DELIVERED_REFCORES)
        ips = by_label(metrics, "resource", DELIVERED_IPS)
        ratios = by_label(metrics, "resource", DELIVERED_RATIO)
        titles = ("ID", "Name", "Status", "Host", "Flavor", "Booking")
        rows = []
        for server in servers:
            booking = server.flavor.booking
            if parsed_args.host not in (None, server.node):
                continue
            if booking is not None and not booking.booked and not parsed_args.best_effort:
                continue
            rows.append(
                (
                    server.id,
                    server.name,
                    server.status,
                    server.node,
                    server.flavor.name,
                    bookings.words(server.flavor),
                    short(refcores.get(server.id)),
                    short(ips.get(server.id)),
                    short(ratios.get(server.id)),
                )
            )
        return (*titles, "Delivered Refcores", "Delivered Ips", "Delivered Ratio"), rows


class ShowServer(ShowOne):
    """Show what a server books, claims in Placement, and gets"""

    _epilog = "example: openstack amp server show web1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="its name or id")
        parser.add_argument("--all-projects", action="store_true", help="of any project (admin)")
        parser.add_argument(
            "--url",
            metavar="URL",
            help="amp-nova-vendordata, which gets your token and tells owners what a server "
            "gets (default: the service 'amp-capacity' of the catalogue)",
        )
        add_prometheus(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        server = self.cloud.server(parsed_args.server, all_projects=parsed_args.all_projects)
        booking = server.flavor.booking
        figures = (
            {} if parsed_args.all_projects else self.cloud.capacity(server.id, parsed_args.url)
        )
        if figures:  # owners need no Prometheus
            metrics = self.cloud.prometheus(parsed_args.prometheus)
        else:
            metrics = prometheus(self.cloud, parsed_args, self.log)
        claimed: dict[str, float] = {}
        with contextlib.suppress(Forbidden):  # Placement is for administrators
            claimed = claimed_by(self.cloud, server.id)
        this = f'{{resource="{server.id}"}}'

        def value(metric: str, label: str) -> DictColumn:
            values = by_label(metrics, label, f"sum by ({label}) ({metric})")
            return DictColumn({name: short(number) for name, number in sorted(values.items())})

        fields = {
            "id": server.id,
            "name": server.name,
            "status": server.status,
            "host": server.node,
            "flavor": server.flavor.name,
            "booking": bookings.words(server.flavor),
            "limit": booking.limit if booking and booking.booked else None,
            "core_type": booking.core_type if booking else None,
            "claimed_refcores": DictColumn(claimed),
            "quota_cores_by_vcpu": value(f"amp_vcpu_quota_cores{this}", "vcpu"),
            "delivered_refcores_by_vcpu": value(f"amp_vcpu_delivered_refcores{this}", "vcpu"),
            "delivered_ips_by_vcpu": value(f"amp_vcpu_delivered_ips{this}", "vcpu"),
            "delivered_ratio_by_vcpu": value(f"amp_vcpu_delivered_ratio{this}", "vcpu"),
            "shortfall_refcore_seconds_last_hour": value(
                f"increase(amp_instance_shortfall_refcore_seconds_total{this}[1h])", "cause"
            ),
            "cpu_seconds_last_hour": value(
                f"increase(amp_instance_cpu_seconds_total{this}[1h])", "core_type"
            ),
            **figures,
        }
        return tuple(fields), tuple(fields.values())
