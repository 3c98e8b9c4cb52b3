"""``amp-nova status`` and ``explain``: the state of this host's instances, from its agent."""

import argparse
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from amp_nova import conf as options
from amp_nova.agent.operator import control_socket
from amp_nova.cmd import table
from amp_nova.cmd.parser import add_config_file
from amp_nova.cmd.table import Cell, Table, formatted
from amp_nova.cmd.terminal import redrawn
from amp_nova.exceptions import AnswerIsNo, ConfigInvalid

EPILOG = """examples:
  amp-nova status
  amp-nova status --watch                         redraw it in every cycle until Ctrl-C
  amp-nova status -c domain -c ratio --sort ratio
  amp-nova status --format json
"""
HEADINGS = ("DOMAIN", "VCPU", "BOOKED", "DELIVERED", "RATIO", "QUOTA", "CORE TYPE", "NOTE")
NONE_HERE = (
    "no instance is running on this host: start one, with a flavor that 'amp-nova flavor check'"
    " accepts"
)


def add_parser(subparsers: Any) -> None:
    """Add ``status`` and ``explain``."""
    status = subparsers.add_parser("status", epilog=EPILOG)
    status.add_argument(
        "--watch", action="store_true", help="redraw the table in every cycle of the agent"
    )
    table.add_arguments(status)
    status.set_defaults(run=run_status)
    explain = subparsers.add_parser("explain", epilog="example: amp-nova explain instance-0000002a")
    explain.add_argument("instance", metavar="INSTANCE", help="UUID, libvirt name or Nova name")
    explain.add_argument("--format", choices=table.DOCUMENTS, default="table")
    explain.set_defaults(run=run_explain)
    for parser in (status, explain):
        add_config_file(parser)


def _answer(state_path: Path, question: dict[str, Any]) -> dict[str, Any]:
    """The agent's answer; ``AnswerIsNo`` if it does not respond, or refuses the request."""
    reply = control_socket.query(state_path, question)
    if reply is None:
        raise AnswerIsNo(
            f"no agent responds in {state_path}: start amp-nova-agent, or name the directory it"
            " uses in [agent] state_path"
        )
    if "error" in reply:
        raise AnswerIsNo(reply["error"])
    return reply


def run_status(args: argparse.Namespace) -> int:
    """Print the state of every vCPU; ``AnswerIsNo`` if no agent responds."""
    agent = options.load(files=args.config_file).agent
    state_path = Path(agent.state_path)
    if args.watch:
        return _watch(args, state_path, agent.cycle_s)
    instances = _answer(state_path, {"ask": "status"})["status"]
    if args.format == "table" and not instances:
        print(NONE_HERE)
    else:
        table.show(args, _table(instances), instances)
    return 0


def _watch(args: argparse.Namespace, state_path: Path, cycle_s: float) -> int:
    """Draw the table in every cycle until Ctrl-C (0)."""
    if args.format != "table" or not sys.stdout.isatty():
        raise ConfigInvalid(
            "--watch draws a table on a terminal: leave it out for other formats, pipes and files"
        )
    try:
        with redrawn() as draw:
            while True:
                draw(_drawing(args, state_path))
                time.sleep(cycle_s)
    except KeyboardInterrupt:
        return 0


def _drawing(args: argparse.Namespace, state_path: Path) -> list[str]:
    """The lines of the table now, or why there are none."""
    try:
        instances = _answer(state_path, {"ask": "status"})["status"]
    except AnswerIsNo as exc:
        return _wrapped(f"amp-nova: {exc}")
    chosen = _table(instances).select(args.columns, args.sort)
    return chosen.lines() if instances else _wrapped(NONE_HERE)


def _wrapped(sentence: str) -> list[str]:
    """A sentence as lines that fit the terminal."""
    return textwrap.wrap(sentence, shutil.get_terminal_size().columns)


def run_explain(args: argparse.Namespace) -> int:
    """Print the reasons for one instance's allocation; ``AnswerIsNo`` if it is not on this host."""
    state_path = Path(options.load(files=args.config_file).agent.state_path)
    found = _answer(state_path, {"ask": "explain", "instance": args.instance})["explain"]
    if args.format == "table":
        print(f"{found['domain']} ({found['instance']})")
        for line in found["because"]:
            print(f"  {line}")
    else:
        table.show_document(args.format, found)
    return 0


def _table(instances: list[dict[str, Any]]) -> Table:
    """One row for each vCPU."""
    rows: list[tuple[object, ...]] = []
    for instance in instances:
        rows += [_row(instance, vcpu) for vcpu in instance["vcpus"]]
        if not instance["vcpus"]:
            unknown = (None,) * (len(HEADINGS) - 2)
            rows.append((instance["domain"], *unknown, instance["problem"] or ""))
    return Table(HEADINGS, rows)


def _row(instance: dict[str, Any], vcpu: dict[str, Any]) -> tuple[object, ...]:
    booked: object = formatted(vcpu["booked_refcores"], "g", "best effort")
    if vcpu["booked_ips"] is not None:
        booked = f"{vcpu['booked_ips']:.4g} Ips"
    short = {cause: s for cause, s in vcpu["shortfall_refcore_s"].items() if s >= 0.001}
    notes = [n for n in (vcpu["note"], instance["problem"]) if n]
    if short:
        notes.append("short " + ", ".join(f"{c} {s:.3g} refcore s" for c, s in short.items()))
    return (
        instance["domain"],
        vcpu["index"],
        booked,
        formatted(vcpu["delivered_refcores"], ".4f"),
        formatted(vcpu["delivered_ratio"], ".3f"),
        formatted(vcpu["quota_cores"], ".4f", "none"),
        Cell(vcpu["core_type"], vcpu["core_type"] or "any"),
        "; ".join(notes),
    )
