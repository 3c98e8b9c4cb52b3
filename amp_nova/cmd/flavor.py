"""``amp-nova flavor check``: the booking that extra specs express, or what is wrong with them."""

import argparse
import sys
from typing import Any

from amp_nova.cmd import table
from amp_nova.cmd.parser import whole
from amp_nova.cmd.table import Cell, Table, formatted
from amp_nova.exceptions import BookingInvalid, sentence
from amp_nova.flavor.extra_specs import TABLE, Booking, examine, vcpus_named
from amp_nova.flavor.placement_resources import placement

EXAMPLE = """example:
  amp-nova flavor check --vcpus 2 amp:pref_core=0.5 amp:pref_core.1=1.5
"""
VCPUS_MAX = 4096
HEADINGS = ("vCPU", "kind", "refcores", "Ips", "limit", "core type")


def add_parser(subparsers: Any) -> None:
    """Add ``flavor`` and its actions."""
    parser = subparsers.add_parser(
        "flavor",
        epilog="example: amp-nova flavor check amp:pref_core=0.5",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
    keys = "\n".join(
        f"  amp:{s.name + ('[.N]' if s.per_vcpu else ''):<15} {s.allowed}" for s in TABLE
    )
    check = actions.add_parser(
        "check",
        help="validate extra specs and print the booking",
        description="Validate extra specs; print the booking and the Placement properties to add.",
        epilog=f"{EXAMPLE}\nextra specs:\n{keys}",
    )
    check.add_argument("specs", nargs="+", metavar="KEY=VALUE", help="an extra spec")
    check.add_argument(
        "--vcpus", type=whole(1, VCPUS_MAX), metavar="N", help="number of vCPUs of the flavor"
    )
    check.add_argument(
        "--reference-ips",
        metavar="IPS",
        help="Ips of the reference core, to convert amp:ips for Placement, such as 2.5G",
    )
    table.add_arguments(check)
    check.set_defaults(run=run)


def _pairs(texts: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The extra specs, and one sentence for each malformed argument."""
    specs: dict[str, str] = {}
    errors = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            errors.append(f"{text!r} is not an extra spec: write KEY=VALUE")
        elif key in specs:
            errors.append(f"{key!r} is given twice: keep one of them")
        else:
            specs[key] = value
    return specs, tuple(dict.fromkeys(errors))


def _reference_ips(text: str | None) -> float | None:
    if text is None:
        return None
    booking, _ = examine({"amp:ips": text}, 1)
    value = booking.vcpus[0].ips if booking else None
    if value is None or value < 1.0:
        raise BookingInvalid(
            f"--reference-ips {text!r} is not allowed: give a decimal from 1 to 1000T, such as 2.5G"
        )
    return value


def run(args: argparse.Namespace) -> int:
    """Print the booking (0), or all errors (2)."""
    specs, errors = _pairs(args.specs)
    vcpus = args.vcpus or vcpus_named(specs)
    reference_ips = _reference_ips(args.reference_ips)
    if vcpus > VCPUS_MAX:
        errors += (f"vCPU {vcpus - 1} is named: use 0 to {VCPUS_MAX - 1}",)
    booking = None
    if not errors:
        booking, errors = examine(specs, vcpus)
    properties = placement(booking, reference_ips) if booking else {}
    vcpu_rows = _rows(booking, reference_ips) if booking else []
    found = {
        "valid": booking is not None,
        "errors": list(errors),
        "vcpus": vcpu_rows,
        "placement": properties,
    }
    if booking or args.format in ("json", "yaml"):
        table.show(args, _table(vcpu_rows), found, ((), _below(properties)))
    if errors:
        print(sentence(f"amp-nova: {'; '.join(errors)}"), file=sys.stderr)
        return 2
    return 0


def _rows(booking: Booking, reference_ips: float | None) -> list[dict[str, Any]]:
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


def _table(vcpu_rows: list[dict[str, Any]]) -> Table:
    chosen = any("coefficient" in row for row in vcpu_rows)
    rows = [
        (
            row["index"],
            row["kind"],
            formatted(row["refcores"], "g"),
            formatted(row["ips"], ".4g"),
            row["limit"] if row["kind"] != "best_effort" else None,
            Cell(row["core_type"], row["core_type"] or "any"),
            *([row.get("coefficient")] if chosen else []),
        )
        for row in vcpu_rows
    ]
    return Table([*HEADINGS, *(["coefficient"] if chosen else [])], rows)


def _below(properties: dict[str, str]) -> list[str]:
    """The lines below the table."""
    claim = ["", "To claim it in Placement, add to the flavor:"] if properties else []
    claim += [f"  --property {key}={value}" for key, value in properties.items()]
    return claim
