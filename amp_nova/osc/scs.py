# SPDX-License-Identifier: Apache-2.0
"""``openstack amp flavor scs``: bookings that keep what Sovereign Cloud Stack flavors promise."""

import argparse
from typing import Any

from amp_nova.cmd.arguments import number
from amp_nova.exceptions import BookingInvalid
from amp_nova.flavor import scs
from amp_nova.flavor.extra_specs import parse
from amp_nova.flavor.scs import CoreSizes, Whole
from amp_nova.osc import bookings
from amp_nova.osc.cloud import Flavor
from amp_nova.osc.command import Lister
from amp_nova.osc.flavor import add_claim, with_claim, write

_refcores = number(0.01, 1000.0)
HEADINGS = ("Flavor", "VCPUs", "CPU Type", "Booking", "Result", "Reason")


class ScsFlavor(Lister):
    """Book what flavors of Sovereign Cloud Stack promise (scs:cpu-type, or names like SCS-2V-4)

    A booking that suffices stays, a smaller one is raised. Exit status 1 if a flavor is refused;
    the others are set. Existing servers keep the flavor as it was until they are resized.
    """

    _epilog = "example: openstack amp flavor scs --dry-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "flavors", metavar="FLAVOR", nargs="*", help="name or id; default: all SCS flavors"
        )
        parser.add_argument("--dry-run", action="store_true", help="change nothing")
        parser.add_argument(
            "--core",
            metavar="REFCORES",
            type=_refcores,
            default=1.0,
            help="capacity of the core of which shared-core is a fifth; default 1",
        )
        for cpu_type in ("dedicated-thread", "dedicated-core"):
            parser.add_argument(
                f"--{cpu_type}",
                metavar="TYPE=REFCORES",
                type=_whole,
                help=f"book all of a {cpu_type.removeprefix('dedicated-')} of this core type for "
                f"{cpu_type}, such as fast=2.1; without it Nova has to pin such flavors",
            )
        add_claim(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        wholes = {
            "dedicated-thread": parsed_args.dedicated_thread,
            "dedicated-core": parsed_args.dedicated_core,
        }
        sizes = CoreSizes(parsed_args.core, {k: v for k, v in wholes.items() if v is not None})
        names = parsed_args.flavors
        if names:
            flavors = [self.cloud.flavor(name) for name in names]
        else:
            flavors = [  # also those whose CPU type is not valid
                f
                for f in self.cloud.flavors()
                if scs.CPU_TYPE in f.specs or scs.cpu_type(f.name, f.specs) is not None
            ]
        return HEADINGS, [self._row(flavor, sizes, parsed_args) for flavor in flavors]

    def _row(
        self, flavor: Flavor, sizes: CoreSizes, args: argparse.Namespace
    ) -> tuple[object, ...]:
        cpu_type = scs.cpu_type(flavor.name, flavor.specs)
        try:
            own, reason = scs.keeping(flavor.name, flavor.specs, flavor.vcpus, sizes)
            specs = with_claim(flavor, own, args)
        except BookingInvalid as exc:
            self.status = 1
            return flavor.name, flavor.vcpus, cpu_type, None, "refused", str(exc)
        result = "unchanged"
        if specs != flavor.specs:
            result = "would be set" if args.dry_run else "set"
            if not args.dry_run:
                write(self.cloud, flavor, specs)
        booking = bookings.described(parse(specs, flavor.vcpus))
        return flavor.name, flavor.vcpus, cpu_type, booking, result, reason


def _whole(text: str) -> Whole:
    core_type, equals, refcores = text.partition("=")
    if not equals or not core_type:
        raise argparse.ArgumentTypeError(f"{text!r} is not TYPE=REFCORES, such as fast=2.1")
    return Whole(core_type, _refcores(refcores))
