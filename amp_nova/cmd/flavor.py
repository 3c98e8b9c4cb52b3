# SPDX-License-Identifier: Apache-2.0
"""What a flavor promises (``amp-nova flavor check``), and whether it is kept (``probe``)."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from amp_nova.cmd.arguments import ips, pairs, whole
from amp_nova.cmd.command import Answer, Command, Report, short
from amp_nova.exceptions import BookingInvalid, ConfigInvalid
from amp_nova.flavor.extra_specs import NAMESPACE, TABLE, Booking, examine, near_misses, vcpus_named
from amp_nova.flavor.placement_resources import claim_specs, placement, remarks
from amp_nova.model.bandwidth import reference_delay_s
from amp_nova.tenant import probe

VCPUS_MAX = 4096
COLUMNS = ("vCPU", "Kind", "Refcores", "Ips", "Limit", "Core Type", "Delay (ms)")
KEYS = "\n".join(f"  amp:{s.name + ('[.N]' if s.per_vcpu else ''):<15} {s.allowed}" for s in TABLE)


class CheckFlavor(Report):
    """Validate extra specs; print the booking and the Placement properties to add"""

    _epilog = f"""example:
  amp-nova flavor check --vcpus 2 amp:pref_core=0.5 amp:pref_core.1=1.5

extra specs:
{KEYS}"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("specs", nargs="+", metavar="KEY=VALUE", help="an extra spec")
        parser.add_argument(
            "--vcpus", type=whole(1, VCPUS_MAX), metavar="N", help="number of vCPUs of the flavor"
        )
        parser.add_argument(
            "--reference-ips",
            type=ips,
            metavar="IPS",
            help="Ips of the reference core, to convert amp:ips for Placement, such as 2.5G",
        )

    def answer(self, args: argparse.Namespace) -> Answer:
        """The booking; all errors are one sentence, and a document has them too."""
        booking, errors = _booking(args)
        if booking is None:
            wrong = BookingInvalid("; ".join(errors))
            if args.formatter not in ("json", "yaml"):
                raise wrong
            self.log.error("%s", wrong)
            self.status = 2
            return Answer((), (), _document(errors, [], {}))
        properties = placement(booking, args.reference_ips)
        specs = pairs("extra spec", args.specs)
        misses = near_misses(specs)
        if not any(key.startswith(f"{NAMESPACE}:") for key in specs):
            misses = misses or (f"none of these is an {NAMESPACE}: key, so nothing is booked",)
        claim = claim_specs(specs)
        wrong_claim = claim.keys() if properties and claim != properties else ()
        self.status = 1 if misses or wrong_claim else 0
        for remark in (*misses, *remarks(booking), *_of_claim(claim, booking, properties)):
            self.log.warning("%s", remark)
        vcpu_rows = _vcpus(booking, args.reference_ips)
        with_coefficients = any("coefficient" in row for row in vcpu_rows)
        columns = [*COLUMNS, *(["Coefficient"] if with_coefficients else [])]
        rows = [_row(row)[: len(columns)] for row in vcpu_rows]
        document = _document((), vcpu_rows, properties)
        claims = ["", "To claim it in Placement, add to the flavor:"] if properties else []
        claims += [f"  --property {key}={value}" for key, value in properties.items()]
        return Answer(columns, rows, document, below=claims)


def _booking(args: argparse.Namespace) -> tuple[Booking | None, tuple[str, ...]]:
    try:
        specs = pairs("extra spec", args.specs)
    except ConfigInvalid as exc:
        return None, (str(exc),)
    vcpus = args.vcpus or vcpus_named(specs)
    if vcpus > VCPUS_MAX:
        return None, (f"vCPU {vcpus - 1} is named: use 0 to {VCPUS_MAX - 1}",)
    return examine(specs, vcpus)


def _of_claim(claim: dict[str, str], booking: Booking, expected: dict[str, str]) -> Iterator[str]:
    """What is missing for a claim, or wrong with the one that is given."""
    if not expected and booking.booked:
        what = "what amp:ips claims is unknown" if claim else "amp:ips claims nothing in Placement"
        yield f"{what} without --reference-ips ('amp-nova topology')"
        return
    for key, value in claim.items():
        if expected.get(key) != value:
            yield f"{key} is {value}, but its booking needs {expected.get(key, 'none')}"


def _document(
    errors: Sequence[str], vcpus: list[dict[str, Any]], properties: dict[str, str]
) -> dict[str, Any]:
    return {
        "valid": not errors,
        "errors": list(errors),
        "vcpus": vcpus,
        "placement": properties,
    }


def _vcpus(booking: Booking, reference_ips: float | None) -> list[dict[str, Any]]:
    rows = []
    for vcpu in booking.vcpus:
        refcores = vcpu.refcores
        if vcpu.ips is not None and reference_ips is not None:
            refcores = vcpu.ips / reference_ips
        rows.append(
            {
                "index": vcpu.index,
                "kind": vcpu.kind,
                "refcores": refcores,
                "ips": vcpu.ips,
                "limit": booking.limit,
                "core_type": booking.core_type,
            }
        )
        if booking.adaptive is not None and vcpu.kind == "pref_core":
            rows[-1]["coefficient"] = "adaptive" if booking.adaptive else "fixed"
    return rows


def _row(vcpu: dict[str, Any]) -> tuple[object, ...]:
    delay_s = None if vcpu["limit"] == "soft" else reference_delay_s(vcpu["refcores"])
    return (
        vcpu["index"],
        vcpu["kind"],
        short(vcpu["refcores"]),
        short(vcpu["ips"]),
        vcpu["limit"] if vcpu["kind"] != "best_effort" else None,
        vcpu["core_type"] or "any",
        None if delay_s is None else round(1e3 * delay_s),
        vcpu.get("coefficient"),
    )


class Probe(Command):
    """Judge the vCPUs of this server: capacity, limit, contention, speed and a promise"""

    _epilog = "example: amp-nova probe --duration 60"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Those of the file ``amp_nova/tenant/probe.py``, which also runs alone."""
        probe.add_arguments(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Measure and print the report; 1 if the promise was not kept, 2 if that is not known."""
        try:
            text, kept = probe.run(parsed_args)
        except ValueError as exc:
            raise ConfigInvalid(exc) from None
        print(text, file=self.app.stdout)
        return probe.STATUS[kept]
