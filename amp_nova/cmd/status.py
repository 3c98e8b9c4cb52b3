"""``amp-nova status`` and ``explain``: the state of this host's instances, from its agent."""

import argparse
import io
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NoReturn

from amp_nova import conf as options
from amp_nova.agent.operator import control_socket
from amp_nova.cmd.arguments import add_config_file
from amp_nova.cmd.command import Answer, Redrawn, Report, short
from amp_nova.exceptions import AnswerIsNo, ConfigInvalid

COLUMNS = ("Domain", "VCPU", "Booked", "Delivered", "Ratio", "Quota", "Core Type", "Note")
NONE_HERE = (
    "no instance is running on this host: start one, with a flavor that 'amp-nova flavor check'"
    " accepts"
)


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


class ShowStatus(Report):
    """Show what every vCPU of this host's instances booked and got"""

    _epilog = """examples:
  amp-nova status
  amp-nova status --watch                         redraw it in every cycle until Ctrl-C
  amp-nova status -c domain -c ratio --sort-column ratio
  amp-nova status -f json
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``status``."""
        parser.add_argument(
            "--watch", action="store_true", help="redraw the table in every cycle of the agent"
        )
        add_config_file(parser)

    def answer(self, args: argparse.Namespace) -> Answer:
        """The state of every vCPU; ``AnswerIsNo`` if no agent responds."""
        agent = options.load(files=args.config_file).agent
        if args.watch:
            self._watch(args, Path(agent.state_path), agent.cycle_s)
        return _status(Path(agent.state_path))

    def _watch(self, args: argparse.Namespace, state_path: Path, cycle_s: float) -> NoReturn:
        """Draw the table in every cycle, until Ctrl-C ends the program (0)."""
        if args.formatter != "table" or not sys.stdout.isatty():
            raise ConfigInvalid(
                "--watch draws a table on a terminal: leave it out for other formats, pipes and"
                " files"
            )
        terminal = Redrawn()
        try:
            while True:
                terminal.draw(self._drawing(args, state_path))
                time.sleep(cycle_s)
        except KeyboardInterrupt:
            sys.exit(0)

    def _drawing(self, args: argparse.Namespace, state_path: Path) -> str:
        """The table now, or why there is none."""
        try:
            self._answer = _status(state_path)
        except AnswerIsNo as exc:
            return textwrap.fill(f"amp-nova: {exc}", shutil.get_terminal_size().columns)
        self.app.stdout = io.StringIO()
        self.produce_output(args, self._answer.columns, self._answer.rows)
        text: str = self.app.stdout.getvalue()
        return text


class Explain(Report):
    """Show why an instance has the quota and cores it has"""

    _epilog = "example: amp-nova explain instance-0000002a"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``explain``."""
        parser.add_argument("instance", metavar="INSTANCE", help="UUID, libvirt name or Nova name")
        add_config_file(parser)

    def answer(self, args: argparse.Namespace) -> Answer:
        """The reasons for its allocation; ``AnswerIsNo`` if it is not on this host."""
        state_path = Path(options.load(files=args.config_file).agent.state_path)
        found = _answer(state_path, {"ask": "explain", "instance": args.instance})["explain"]
        name = f"{found['domain']} ({found['instance']})"
        return Answer(("Reason",), [(line,) for line in found["because"]], found, above=[name])


def _status(state_path: Path) -> Answer:
    """A row for each vCPU; ``AnswerIsNo`` if no agent responds."""
    instances = _answer(state_path, {"ask": "status"})["status"]
    rows: list[tuple[object, ...]] = []
    for instance in instances:
        rows += [_row(instance, vcpu) for vcpu in instance["vcpus"]]
        if not instance["vcpus"]:
            unknown = (None,) * (len(COLUMNS) - 2)
            rows.append((instance["domain"], *unknown, instance["problem"] or ""))
    return Answer(COLUMNS, rows, instances, below=() if instances else (NONE_HERE,))


def _row(instance: dict[str, Any], vcpu: dict[str, Any]) -> tuple[object, ...]:
    booked = "best effort"
    if vcpu["booked_refcores"] is not None:
        booked = f"{vcpu['booked_refcores']:g}"
    if vcpu["booked_ips"] is not None:
        booked = f"{vcpu['booked_ips']:.4g} Ips"
    shortfall = {cause: s for cause, s in vcpu["shortfall_refcore_s"].items() if s >= 0.001}
    notes = [n for n in (vcpu["note"], instance["problem"]) if n]
    if shortfall:
        causes = ", ".join(f"{cause} {s:.3g} refcore s" for cause, s in shortfall.items())
        notes.append(f"short {causes}")
    return (
        instance["domain"],
        vcpu["index"],
        booked,
        short(vcpu["delivered_refcores"]),
        short(vcpu["delivered_ratio"]),
        short(vcpu["quota_cores"]),
        vcpu["core_type"] or "any",
        "; ".join(notes),
    )
