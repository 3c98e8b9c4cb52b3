"""``amp-nova status`` and ``explain``: what the agent on this host says of its instances."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from amp_nova import conf as options
from amp_nova.agent.operator import control_socket


def add_parser(subparsers: Any) -> None:
    """Add ``status`` and ``explain``."""
    status = subparsers.add_parser(
        "status",
        help="instances: booked, delivered, quota, core type, shortfall by cause",
        epilog="example: amp-nova status --format json",
    )
    status.set_defaults(run=run_status)
    explain = subparsers.add_parser(
        "explain",
        help="why an instance has the quota and cores it has",
        epilog="example: amp-nova explain instance-0000002a",
    )
    explain.add_argument("instance", metavar="INSTANCE", help="UUID, libvirt name or Nova name")
    explain.set_defaults(run=run_explain)
    for parser in (status, explain):
        parser.add_argument("--config-file", metavar="FILE", action="append")
        parser.add_argument("--format", choices=["table", "json"], default="table")


def _ask(args: argparse.Namespace, question: dict[str, Any]) -> dict[str, Any] | None:
    state_path = Path(options.load(files=args.config_file).agent.state_path)
    reply = control_socket.ask(state_path, question)
    if reply is None:
        print(f"amp-nova: no agent answers in {state_path}: start amp-nova-agent", file=sys.stderr)
    elif "error" in reply:
        print(f"amp-nova: {reply['error']}", file=sys.stderr)
        return None
    return reply


def run_status(args: argparse.Namespace) -> int:
    """Print every vCPU's state (0), or that there is no agent (1)."""
    reply = _ask(args, {"ask": "status"})
    if reply is None:
        return 1
    if args.format == "json":
        print(json.dumps(reply["status"], indent=2))
    else:
        print(table(reply["status"]))
    return 0


def run_explain(args: argparse.Namespace) -> int:
    """Print why one instance has what it has (0), or that it is not here (1)."""
    reply = _ask(args, {"ask": "explain", "instance": args.instance})
    if reply is None:
        return 1
    found = reply["explain"]
    if args.format == "json":
        print(json.dumps(found, indent=2))
    else:
        print(f"{found['domain']} ({found['instance']})")
        for line in found["because"]:
            print(f"  {line}")
    return 0


HEADINGS = ("DOMAIN", "VCPU", "BOOKED", "DELIVERED", "RATIO", "QUOTA", "CORE TYPE", "NOTE")


def table(instances: list[dict[str, Any]]) -> str:
    """The instances as aligned text, one line a vCPU."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for instance in instances:
        for vcpu in instance["vcpus"]:
            rows.append(_row(instance, vcpu))
        if not instance["vcpus"]:
            rows.append((instance["domain"], *"------", instance["problem"] or ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS) - 1)]
    lines = (
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )
    return "\n".join(lines) if instances else "no instance is running here"


def _row(instance: dict[str, Any], vcpu: dict[str, Any]) -> tuple[str, ...]:
    if vcpu["booked_ips"] is not None:
        booked = f"{vcpu['booked_ips']:.4g} Ips"
    else:
        booked = _figure(vcpu["booked_refcores"], "{:g}", "best effort")
    short = {cause: s for cause, s in vcpu["shortfall_refcore_s"].items() if s >= 0.001}
    notes = [n for n in (vcpu["note"], instance["problem"]) if n]
    if short:
        notes.append("short " + ", ".join(f"{c} {s:.3g} refcore s" for c, s in short.items()))
    return (
        instance["domain"],
        str(vcpu["index"]),
        booked,
        _figure(vcpu["delivered_refcores"], "{:.4f}"),
        _figure(vcpu["delivered_ratio"], "{:.3f}"),
        _figure(vcpu["quota_cores"], "{:.4f}", "none"),
        vcpu["core_type"] or "any",
        "; ".join(notes),
    )


def _figure(value: float | None, form: str, absent: str = "-") -> str:
    return absent if value is None else form.format(value)
