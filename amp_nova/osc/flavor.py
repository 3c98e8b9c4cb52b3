# SPDX-License-Identifier: Apache-2.0
"""``openstack amp flavor``: a booking and its claim in Placement, written together."""

import argparse
from collections.abc import Mapping
from typing import Any

from amp_nova.cmd.arguments import ips, pairs
from amp_nova.exceptions import BookingInvalid
from amp_nova.flavor.extra_specs import NAMESPACE, TABLE, near_misses, parse
from amp_nova.flavor.placement_resources import claim_specs, placement, remarks
from amp_nova.osc import bookings
from amp_nova.osc.cloud import Cloud, Flavor
from amp_nova.osc.command import CloudCommand, Lister


class ListFlavor(Lister):
    """List flavors that book capacity"""

    _epilog = "example: openstack amp flavor list -f json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--best-effort", action="store_true", help="also those without a booking"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        rows = []
        for flavor in self.cloud.flavors():
            booking = flavor.booking
            meant = booking is None or booking.booked or near_misses(flavor.specs)
            if not meant and not parsed_args.best_effort:
                continue
            units = flavor.specs.get(bookings.CLAIM_KEY, "")
            rows.append(
                (
                    flavor.name,
                    flavor.vcpus,
                    bookings.words(flavor),
                    booking.limit if booking and booking.booked else None,
                    booking.core_type if booking else None,
                    int(units) / 1000 if units.isdecimal() else None,
                    bookings.delay_ms(flavor),
                )
            )
        return (
            "Name",
            "VCPUs",
            "Booking",
            "Limit",
            "Core Type",
            "Claimed Refcores",
            "Delay (ms)",
        ), rows


class CheckNovaFlavor(Lister):
    """Check flavors: bookings that are invalid, and claims that do not match them

    Exit status 1 if there is a problem.
    """

    _epilog = "example: openstack amp flavor check && echo all flavors are in order"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("flavors", metavar="FLAVOR", nargs="*", help="name or id; default: all")

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        names = parsed_args.flavors
        flavors = [self.cloud.flavor(name) for name in names] if names else self.cloud.flavors()
        rows = [(f.name, problem) for f in flavors for problem in bookings.problems(f)]
        self.status = 1 if rows else 0
        return ("Flavor", "Problem"), rows


class SetFlavor(CloudCommand):
    """Set extra specs of a flavor, and what Placement claims for them

    Existing servers keep the flavor as it was until they are resized.
    """

    _epilog = "example: openstack amp flavor set --property amp:pref_core=0.5 half"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("flavor", metavar="FLAVOR", help="name or id")
        keys = ", ".join(f"{NAMESPACE}:{s.name}" for s in TABLE)
        parser.add_argument(
            "specs", metavar="KEY=VALUE", nargs="*", help="the same, without --property"
        )
        parser.add_argument(
            "--property",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help=f"an extra spec; may be repeated; KEY is one of {keys}",
        )
        add_claim(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Print nothing, as ``openstack flavor set`` does; warn of what cannot be meant."""
        flavor = self.cloud.flavor(parsed_args.flavor)
        properties = pairs("extra spec", [*parsed_args.specs, *parsed_args.property])
        if not properties:
            raise BookingInvalid("nothing is set: give KEY=VALUE, such as amp:pref_core=0.5")
        if foreign := [key for key in properties if not key.startswith(f"{NAMESPACE}:")]:
            raise BookingInvalid(f"{foreign[0]!r} is not allowed: write {NAMESPACE}:NAME=VALUE")
        own = {**bookings.own_specs(flavor.specs), **properties}
        specs = with_claim(flavor, own, parsed_args)
        for remark in remarks(parse(specs, flavor.vcpus)):
            self.log.warning("%s", remark)
        write(self.cloud, flavor, specs)


class UnsetFlavor(CloudCommand):
    """Remove extra specs of a flavor, and adapt what Placement claims"""

    _epilog = "example: openstack amp flavor unset half --all"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("flavor", metavar="FLAVOR", help="name or id")
        parser.add_argument("keys", metavar="KEY", nargs="*", help="such as amp:limit")
        parser.add_argument("--all", action="store_true", help="the whole booking and its claim")
        add_claim(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Print nothing, as ``openstack flavor unset`` does."""
        if bool(parsed_args.keys) == parsed_args.all:
            raise BookingInvalid("name the keys to remove, or give --all")
        flavor = self.cloud.flavor(parsed_args.flavor)
        own = bookings.own_specs(flavor.specs)
        if unknown := [key for key in parsed_args.keys if key not in own]:
            has = ", ".join(own) or f"no {NAMESPACE}: keys"
            raise BookingInvalid(f"flavor {flavor.name!r} has no {unknown[0]!r}: it has {has}")
        removed = set(own) if parsed_args.all else set(parsed_args.keys)
        remaining = {key: value for key, value in own.items() if key not in removed}
        write(self.cloud, flavor, with_claim(flavor, remaining, parsed_args))


def add_claim(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what Placement claims."""
    parser.add_argument("--no-claim", action="store_true", help="claim nothing in Placement")
    parser.add_argument(
        "--reference-ips",
        type=ips,
        metavar="IPS",
        help="Ips of the reference core, to claim amp:ips, such as 2.5G (amp-nova topology)",
    )


def with_claim(flavor: Flavor, own: Mapping[str, str], args: argparse.Namespace) -> dict[str, str]:
    """All extra specs of the flavor, with ``own`` as its ``amp:`` keys and the claim they need.

    ``args``: those of ``add_claim``. Raises ``BookingInvalid`` for a booking that is not valid.
    """
    others = {
        key: value
        for key, value in flavor.specs.items()
        if key not in bookings.own_specs(flavor.specs) and key not in claim_specs(flavor.specs)
    }
    specs = {**others, **own}
    booking = parse(specs, flavor.vcpus)
    if args.no_claim or not booking.booked:
        return specs
    if not (claim := placement(booking, args.reference_ips)):
        raise BookingInvalid(
            "a booking in Ips is claimed in reference cores: give --reference-ips IPS, the Ips of "
            "the reference core ('amp-nova topology' on a host that has it), or --no-claim"
        )
    return {**specs, **claim}


def write(cloud: Cloud, flavor: Flavor, specs: Mapping[str, str]) -> None:
    """Make ``specs`` the extra specs of the flavor: set what differs, and remove the rest."""
    cloud.set_specs(flavor, {k: v for k, v in specs.items() if flavor.specs.get(k) != v})
    for key in sorted(flavor.specs.keys() - specs.keys()):
        cloud.unset_spec(flavor, key)
