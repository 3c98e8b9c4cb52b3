# SPDX-License-Identifier: Apache-2.0
"""``amp-nova simulate`` and ``compare``: scenarios with the agent's own control loop."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from amp_nova import plugins
from amp_nova.cmd.arguments import pairs
from amp_nova.cmd.command import Answer, Report, progress, short
from amp_nova_lab import report
from amp_nova_lab import run as simulation
from amp_nova_lab.cloud import description
from amp_nova_lab.cloud.run import run as simulate
from amp_nova_lab.commands import figure, inputs
from amp_nova_lab.report import Result, rounded
from amp_nova_lab.scenarios import document
from amp_nova_lab.scenarios.document import Place, ScenarioInvalid
from amp_nova_lab.scenarios.scenario import override
from amp_nova_lab.slots import run as slots

REPLACEABLE = ("duration_s", "seed")
CLOUD_COLUMNS = ("Hour", "Instances", "Booked", "Best Effort", "Unplaced")
COLUMNS = {
    "VM": "name",
    "Booked": "booked_refcores",
    "Ratio": "delivered_ratio",
    "Least": "delivered_ratio_min",
    "Most": "delivered_ratio_max",
    "Progress": "progress_refcores",
    "On Fast": "fast_share",
    "Slowdown": "slowdown",
    "Done At s": "completion_s",
}
COLUMNS_OF_SOME = {
    "I/O byte/s": "io_bytes_s",
    "Usage": "combined_usage_ratio",
    "Requests": "requests_completed",
    "p50 s": "latency_p50_s",
    "p95 s": "latency_p95_s",
    "p99 s": "latency_p99_s",
}
"""Shown if a VM of the scenario has them."""

BASELINE = "amp-fair"
COMPARED = {
    "Scenario": "scenario",
    "Policy": "policy",
    "Throughput": "throughput",
    "ASP": "asp",
    "Unfairness": "unfairness",
    "Slowdown": "slowdown_worst",
    "Moves": "migrations",
    "Of Caches": "cross_llc_migrations",
    "Idle": "fast_idle_ratio",
}

LEGEND = """\
front: * if no other policy is better in both throughput and unfairness (by 0.5 % or more).
throughput: mean speed of the VMs, 1 = the slowest core type. ASP: sum of their gains over it.
unfairness: greatest over least slowdown, 1 is best. slowdown: of the VM that loses most against
amp-fair, as a share of its speed. moves: to another pCPU; of caches: to another last-level cache.
idle: share of the fast cores' time."""
Row = Mapping[str, Any]
"""One policy in one scenario: the scenario's name and the values of ``COMPARED``."""


class Simulate(Report):
    """Run a scenario with the agent's own control loop on a simulated host"""

    _epilog = """examples:
  amp-nova simulate scenario.yaml
  amp-nova simulate scenario.yaml --policy credit --set seed=7 --format json
  amp-nova simulate scenario.yaml --policy integrated --set slots=true

The same scenario with the same seed gives the same bytes. The user guide (simulator) documents the
keys of a scenario and defines every number of the result.
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("scenario", type=Path, metavar="SCENARIO.yaml", help="what to run")
        parser.add_argument(
            "--policy", metavar="NAME", help="best-effort policy instead of the scenario's"
        )
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            dest="settings",
            help="the scenario's seed, duration_s or ips_controller, slots=true for a scheduler in "
            "slots of 10 ms (credit, aash, integrated), or a parameter of the policy; may be "
            "repeated",
        )

    def answer(self, args: argparse.Namespace) -> Answer:
        """Run it; raises ``AmpError`` for invalid input."""
        whole = document.load(args.scenario)
        if description.describes(whole):
            return _cloud(args, whole)
        scenario = inputs.read(whole)
        settings = pairs("--set", args.settings)
        in_slots = settings.pop("slots", "false").lower()
        if in_slots not in ("true", "false"):
            raise ScenarioInvalid(f"--set slots='{in_slots}' is not allowed: give true or false")
        scenario = override(scenario, settings)
        name = scenario.policy if args.policy is None else args.policy
        policy = simulation.read_policy(name, **settings)
        inputs.warn(self.log, scenario)
        result = (slots if in_slots == "true" else simulation).run(scenario, policy)
        vms = [{"name": name, **asdict(vm)} for name, vm in result.vms.items()]
        some = {head: key for head, key in COLUMNS_OF_SOME.items() if any(key in vm for vm in vms)}
        columns = COLUMNS | some
        rows = [[short(vm.get(key)) for key in columns.values()] for vm in vms]
        above, below = _around(result)
        return Answer(list(columns), rows, report.rounded(result), above, below)


def _around(result: Result) -> tuple[list[str], list[str]]:
    """The lines above and below the table of the guests."""
    head = f"{result.scenario}: {result.duration_s:g} s, best-effort policy {result.policy}"
    host = (
        f"throughput {short(result.throughput)}, ASP {short(result.asp)}, "
        f"unfairness {short(result.unfairness)}, migrations {result.migrations} "
        f"({result.cross_llc_migrations} between caches), "
        f"fast cores idle {short(result.fast_idle_ratio)}"
    )
    return [head, ""], ["", host]


def _cloud(args: argparse.Namespace, whole: Place) -> Answer:
    """What happens in a cloud; raises ``AmpError`` for invalid input."""
    settings = pairs("--set", args.settings)
    for key in settings:
        if key not in REPLACEABLE:
            allowed = " and ".join(REPLACEABLE)
            raise ScenarioInvalid(f"--set {key} is not allowed for a cloud: set only {allowed}")
    if args.policy is not None:
        raise ScenarioInvalid("--policy is not allowed for a cloud: its hosts share evenly")
    run = description.read(whole, settings)

    def show(at_s: float) -> None:
        progress(f"{run.name}: hour {at_s / 3600:.0f} of {run.duration_s / 3600:.0f}")

    result = simulate(run.cloud, run.duration_s, run.seed, show)
    progress("")
    rows = [
        [s.at_s / 3600.0, s.instances, s.booked_refcores, s.best_effort_refcores, s.unplaced]
        for s in result.samples
    ]
    head = f"{run.name}: {run.duration_s:g} s of {len(run.cloud.hosts)} hosts"
    foot = (
        f"{result.arrived} arrived, {result.refused} refused; booked and best effort in reference "
        f"cores, of {result.bookable_refcores:g} that can be booked"
    )
    summary = {
        "scenario": run.name,
        "duration_s": run.duration_s,
        "hosts": len(run.cloud.hosts),
        **asdict(result),
        "samples": [asdict(sample) for sample in result.samples],
    }
    rows = [[short(value) for value in row] for row in rows]
    return Answer(CLOUD_COLUMNS, rows, rounded(summary), above=[head, ""], below=["", foot])


class Compare(Report):
    """Run several best-effort policies over scenarios and compare the results"""

    _epilog = """examples:
  amp-nova compare scenario.yaml
  amp-nova compare one.yaml two.yaml --policy amp-fair --policy acfs --plot figure.png

A policy may have parameters: --policy amp-r-fair:fair_ratio=0.35. The slowdown is that of the VM
that loses most against amp-fair in the same scenario.
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("scenarios", nargs="+", type=Path, metavar="SCENARIO.yaml")
        parser.add_argument(
            "--policy",
            action="append",
            dest="policies",
            metavar="NAME[:KEY=VALUE...]",
            help="a policy to run, may be repeated; default: all installed policies",
        )
        parser.add_argument(
            "--plot",
            metavar="FILE",
            help="plot throughput against unfairness, with the Pareto front (needs matplotlib)",
        )

    def answer(self, args: argparse.Namespace) -> Answer:
        """Run all; raises ``AmpError`` for invalid input."""
        policies = inputs.policies(args.policies or plugins.policies())
        scenarios = [inputs.load(path) for path in args.scenarios]
        drawing = None if args.plot is None else figure.empty(args.plot)
        by_scenario: dict[str, list[Row]] = {}
        for number, one in enumerate(scenarios, 1):
            inputs.warn(self.log, one)
            fair = simulation.run(one, plugins.load_policy(BASELINE))
            for name, policy in policies.items():
                progress(f"{one.name}: {name} ({number} of {len(scenarios)})")
                result = fair if name == BASELINE else simulation.run(one, policy)
                by_scenario.setdefault(one.name, []).append(_compared(name, result, fair))
        progress("")
        if drawing is not None:
            figure.draw(drawing, by_scenario, args.plot)
        messages = [f"{n}: {figure.message(figure.groups(r))}" for n, r in by_scenario.items()]
        document = rounded([row for rows in by_scenario.values() for row in rows])
        below = ["", *messages, "", LEGEND]
        return Answer([*COMPARED, "Front"], _marked(by_scenario), document, below=below)


def _compared(policy: str, result: Result, fair: Result) -> Row:
    losses = [
        1.0 - vm.progress_refcores / even.progress_refcores
        for name, vm in result.vms.items()
        if (even := fair.vms[name]).progress_refcores
    ]
    return {
        "scenario": result.scenario,
        "policy": policy,
        "throughput": result.throughput,
        "asp": result.asp,
        "unfairness": result.unfairness,
        "slowdown_worst": max(0.0, *losses) if losses else None,
        "migrations": result.migrations,
        "cross_llc_migrations": result.cross_llc_migrations,
        "fast_idle_ratio": result.fast_idle_ratio,
    }


def _marked(scenarios: Mapping[str, Sequence[Row]]) -> list[list[object]]:
    """A row for every policy in every scenario; * marks the Pareto front."""
    cells: list[list[object]] = []
    for rows in scenarios.values():
        front = {p for g in figure.groups(rows) if g.front for p in g.policies}
        for row in rows:
            mark = "*" if row["policy"] in front else ""
            cells.append([*(short(row[key]) for key in COMPARED.values()), mark])
    return cells
