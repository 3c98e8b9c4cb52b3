"""``amp-nova status`` and ``explain``: the state of this host's instances, from its agent."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from amp_nova import conf as options
from amp_nova.agent.operator import control_socket
from amp_nova.cmd.table import aligned, number


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


def _query(args: argparse.Namespace, question: dict[str, Any]) -> dict[str, Any] | None:
    state_path = Path(options.load(files=args.config_file).agent.state_path)
    reply = control_socket.query(state_path, question)
    if reply is None:
        print(f"amp-nova: no agent responds in {state_path}: start amp-nova-agent", file=sys.stderr)
    elif "error" in reply:
        print(f"amp-nova: {reply['error']}", file=sys.stderr)
        return None
    return reply


def run_status(args: argparse.Namespace) -> int:
    """Print the state of every vCPU (0), or that no agent responds (1)."""
    reply = _query(args, {"ask": "status"})
    if reply is None:
        return 1
    if args.format == "json":
        print(json.dumps(reply["status"], indent=2))
    else:
        print(_table(reply["status"]))
    return 0


def run_explain(args: argparse.Namespace) -> int:
    """Print the reasons for one instance's allocation (0), or that it is not on this host (1)."""
    reply = _query(args, {"ask": "explain", "instance": args.instance})
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


def _table(instances: list[dict[str, Any]]) -> str:
    """One line for each vCPU."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for instance in instances:
        for vcpu in instance["vcpus"]:
            rows.append(_row(instance, vcpu))
        if not instance["vcpus"]:
            rows.append((instance["domain"], *"------", instance["problem"] or ""))
    lines = aligned(rows, left=range(len(HEADINGS)))
    return "\n".join(lines) if instances else "no instance is running on this host"


def _row(instance: dict[str, Any], vcpu: dict[str, Any]) -> tuple[str, ...]:
    if vcpu["booked_ips"] is not None:
        booked = f"{vcpu['booked_ips']:.4g} Ips"
    else:
        booked = number(vcpu["booked_refcores"], "g", "best effort")
    short = {cause: s for cause, s in vcpu["shortfall_refcore_s"].items() if s >= 0.001}
    notes = [n for n in (vcpu["note"], instance["problem"]) if n]
    if short:
        notes.append("short " + ", ".join(f"{c} {s:.3g} refcore s" for c, s in short.items()))
    return (
        instance["domain"],
        str(vcpu["index"]),
        booked,
        number(vcpu["delivered_refcores"], ".4f"),
        number(vcpu["delivered_ratio"], ".3f"),
        number(vcpu["quota_cores"], ".4f", "none"),
        vcpu["core_type"] or "any",
        "; ".join(notes),
    )
