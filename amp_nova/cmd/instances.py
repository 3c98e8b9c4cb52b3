# SPDX-License-Identifier: Apache-2.0
"""``amp-nova status``, ``explain``, ``pause``, ``resume`` and ``release``: this host's instances.

The agent answers the first two; the others work without it.
"""

import argparse
import io
import math
import shutil
import sys
import textwrap
import time
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

from amp_nova import conf as options
from amp_nova.accounting.delivery import KEPT_RATIO, MINUTE_S
from amp_nova.agent.operator import control_socket
from amp_nova.cmd.arguments import add_config_file, number
from amp_nova.cmd.command import Answer, Command, Report, Screen, short
from amp_nova.exceptions import AmpError, AnswerIsNo, ConfigInvalid
from amp_nova.guard import locks
from amp_nova.guard.pauses import Pauses

COLUMNS = ("Domain", "VCPU", "Booked", "Delivered", "Ratio", "Quota", "Core Type", "Note")
Past = deque[tuple[float, dict[Any, Any]]]
"""Shortfalls by instance and vCPU at times in seconds, the oldest first."""
NO_LIBVIRT = "libvirt's Python binding is missing: install amp-nova[agent]"
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
  amp-nova status --watch                         the worst first, until Ctrl-C
  amp-nova status -c domain -c ratio --sort-column ratio
  amp-nova status -f json
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--watch", action="store_true", help="show a verdict and the worst, in every cycle"
        )
        add_config_file(parser)

    def answer(self, args: argparse.Namespace) -> Answer:
        """The state of every vCPU; ``AnswerIsNo`` if no agent responds."""
        agent = options.load(files=args.config_file).agent
        if args.watch:
            self._watch(args, Path(agent.state_path), agent.cycle_s)
        return _status(_answer(Path(agent.state_path), {"command": "status"}))

    def _watch(self, args: argparse.Namespace, state_path: Path, cycle_s: float) -> NoReturn:
        """Draw the verdict and the table in every cycle, until Ctrl-C ends the program (0)."""
        if args.formatter != "table" or not sys.stdout.isatty():
            raise ConfigInvalid(
                "--watch draws a table on a terminal: leave it out for other formats and files"
            )
        args.columns = args.columns or ["domain", "vcpu", "booked", "ratio", "note"]
        args.max_width = 10_000  # one line for each vCPU, which the screen cuts
        terminal, past = Screen(), Past()
        try:
            while True:
                terminal.draw(self._drawing(args, state_path, past))
                time.sleep(cycle_s)
        except KeyboardInterrupt:
            sys.exit(0)

    def _drawing(self, args: argparse.Namespace, state_path: Path, past: Past) -> str:
        """The verdict and as many vCPUs as fit now, the worst first, or why there are none."""
        width, height = shutil.get_terminal_size()
        try:
            reply = _answer(state_path, {"command": "status"})
        except AnswerIsNo as exc:
            return textwrap.fill(f"amp-nova: {exc}", width)
        span_s = lose_recently(reply["status"], past, time.monotonic())
        # An instance for each vCPU, and one that has none, because it cannot be read, as it is.
        vcpus = [
            {**i, "vcpus": one}
            for i in reply["status"]
            for one in [[v] for v in i["vcpus"]] or [[]]
        ]
        vcpus.sort(key=_least_ratio)
        self._answer = _status({**reply, "status": vcpus})
        lines = [_verdict(vcpus), *self._answer.below]
        self.app.stdout = io.StringIO()
        self.produce_output(args, self._answer.columns, self._answer.rows)
        lines += self.app.stdout.getvalue().splitlines()[:-1]
        fit = height - 2  # the last line, and the cursor below it
        more = f"{len(lines) - fit} more; " if len(lines) > fit else ""
        return "\n".join([*lines[:fit], f"{more}losses are those of the last {span_s:.0f} s"])


class Explain(Report):
    """Show why an instance has the quota and cores it has"""

    _epilog = "example: amp-nova explain instance-0000002a"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("instance", metavar="INSTANCE", help="UUID, libvirt name or Nova name")
        add_config_file(parser)

    def answer(self, args: argparse.Namespace) -> Answer:
        """The reasons for its allocation; ``AnswerIsNo`` if it is not on this host."""
        state_path = Path(options.load(files=args.config_file).agent.state_path)
        question = {"command": "explain", "instance": args.instance}
        explained = _answer(state_path, question)["explain"]
        name = f"{explained['domain']} ({explained['instance']})"
        rows = [(line,) for line in explained["because"]]
        return Answer(("Reason",), rows, explained, above=[name])


def lose_recently(instances: list[dict[str, Any]], past: Past, now_s: float) -> float:
    """Leave what vCPUs lost in the last minute, or since ``past`` began; returns its seconds."""
    vcpus = {(i["instance"], v["index"]): v for i in instances for v in i["vcpus"]}
    past.append((now_s, {k: v["shortfall_refcore_s"] for k, v in vcpus.items()}))
    while len(past) > 2 and now_s - past[1][0] >= MINUTE_S:
        past.popleft()
    for key, vcpu in vcpus.items():
        before, now = past[0][1].get(key, {}), vcpu["shortfall_refcore_s"]
        vcpu["shortfall_refcore_s"] = {c: s - before.get(c, 0.0) for c, s in now.items()}
    return now_s - past[0][0]


def _least_ratio(instance: dict[str, Any]) -> float:
    """The least part of a booking it gets: 0 if not enforced, infinite if it books nothing."""
    booked = [v for v in instance["vcpus"] if v["kind"] != "best_effort"]
    if instance["problem"] or any(v["note"] for v in booked):
        return 0.0
    ratios = (1.0 if (r := v["delivered_ratio"]) is None else r for v in booked)
    return min(ratios, default=math.inf)


def _verdict(vcpus: list[dict[str, Any]]) -> str:
    """Whether all bookings are kept; ``vcpus``: an instance for each, the worst first."""
    ratios = [r for r in map(_least_ratio, vcpus) if r < math.inf]
    if short := sum(r < KEPT_RATIO for r in ratios):
        worst = " vCPU ".join([vcpus[0]["domain"], *(str(v["index"]) for v in vcpus[0]["vcpus"])])
        return f"{short} of {len(ratios)} booked vCPUs are short, the worst: {worst}"
    return "All bookings are kept." if ratios else "There is no booking on this host."


def _status(reply: dict[str, Any]) -> Answer:
    """A row for each vCPU."""
    instances = reply["status"]
    below = list(reply.get("warnings", ()))
    rows: list[tuple[object, ...]] = []
    for instance in instances:
        rows += [_row(instance, vcpu) for vcpu in instance["vcpus"]]
        if not instance["vcpus"]:
            unknown = (None,) * (len(COLUMNS) - 2)
            rows.append((instance["domain"], *unknown, instance["problem"] or ""))
    return Answer(COLUMNS, rows, instances, below=below if instances else [*below, NONE_HERE])


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


def _find(conf: Any, instance: str) -> str:
    try:
        from amp_nova.agent.operator.instance_names import resolve
        from amp_nova.agent.wiring import make_sensor
    except ImportError as exc:
        raise AmpError(NO_LIBVIRT) from exc
    here = {r.domain.resource: r.domain for r in make_sensor(conf).observe().domains}
    return resolve(instance, {u: (d.name, d.display_name) for u, d in here.items()})


class Pause(Command):
    """Leave the limits and affinities of one instance as they are for a while"""

    _epilog = "example: amp-nova pause instance-0000002a --ttl 600"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--ttl", type=number(0.1, 1e9), required=True, metavar="S", help="for how many seconds"
        )
        parser.add_argument("instance", metavar="INSTANCE", help="UUID, libvirt name or Nova name")
        add_config_file(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Pause one instance. Once this returns, the agent no longer writes to it."""
        conf = options.load(files=parsed_args.config_file)
        resource, state_path = _find(conf, parsed_args.instance), Path(conf.agent.state_path)
        # Waits for writes that are under way.
        with locks.locked(state_path, locks.CYCLE, wait_s=locks.WAIT_S):
            Pauses(state_path).pause(resource, "paused by an operator", parsed_args.ttl)
        print(f"{parsed_args.instance} is paused for {parsed_args.ttl:g} s")


class Resume(Command):
    """Let the agent manage an instance again that was paused or released"""

    _epilog = """examples:
  amp-nova resume instance-0000002a
  amp-nova resume --all
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        names = "UUID, libvirt name or Nova name"
        parser.add_argument("instance", metavar="INSTANCE", nargs="?", help=names)
        parser.add_argument("--all", action="store_true", help="every instance of this host")
        add_config_file(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Resume one instance or all; ``AnswerIsNo`` if nothing was paused."""
        conf, instance = options.load(files=parsed_args.config_file), parsed_args.instance
        if parsed_args.all == (instance is not None):
            raise AmpError("resume: give either INSTANCE or --all")
        pauses = Pauses(Path(conf.agent.state_path))
        if parsed_args.all:
            if not [name for name in pauses.current() if pauses.resume(name)]:
                raise AnswerIsNo("nothing was paused or released on this host")
            print("every instance is managed again")
            return
        # A paused instance may have left this host: its UUID alone is enough.
        if not (pauses.resume(instance) or pauses.resume(_find(conf, instance))):
            raise AnswerIsNo(f"{instance} was neither paused nor released")
        print(f"{instance} is managed again")


class Release(Report):
    """Remove the limits and affinities that amp-nova set on some instances or on all

    The agent does not manage them again until 'amp-nova resume'.
    """

    _epilog = "example: amp-nova release --all --dry-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("instances", metavar="INSTANCE", nargs="*")
        parser.add_argument("--all", action="store_true", help="every instance of this host")
        parser.add_argument("--dry-run", action="store_true", help="list the changes, make none")
        add_config_file(parser)

    def answer(self, args: argparse.Namespace) -> Answer:
        """The changes; exit status 1 if something could not be undone."""
        if args.all == bool(args.instances):
            raise AmpError("release: give either INSTANCE... or --all")
        from amp_nova.agent.operator.release import release

        conf = options.load(files=args.config_file)
        result = release(conf, None if args.all else args.instances, dry_run=args.dry_run)
        for sentence in result.left:
            self.log.error("%s", sentence)
        self.status = 1 if result.left else 0
        would = "to release" if args.dry_run else "released"
        names = [] if args.dry_run else [f"released {name}" for name in result.names]
        return Answer(
            ("What", "Change"),
            [line.partition(": ")[::2] for line in result.changes],
            {
                "released": list(result.names),
                "changes": list(result.changes),
                "leftovers": list(result.left),
            },
            below=[*names, f"{len(result.names)} {would}, {len(result.left)} leftovers"],
        )
