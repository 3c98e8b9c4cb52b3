"""``amp-nova compare``: several policies over several scenarios, in one table."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_nova import plugins
from amp_nova.cmd.command import Answer, Report, progress, short
from amp_nova.sim import run as simulation
from amp_nova.sim.commands import figure, inputs
from amp_nova.sim.report import Result, rounded

BASELINE = "amp-fair"
COLUMNS = {
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
"""One policy in one scenario: the scenario's name and the values of ``COLUMNS``."""


class Compare(Report):
    """Run several best-effort policies over scenarios and compare the results"""

    _epilog = """examples:
  amp-nova compare scenario.yaml
  amp-nova compare one.yaml two.yaml --policy amp-fair --policy acfs --plot figure.png

A policy may have parameters: --policy amp-r-fair:fair_ratio=0.35. The slowdown is that of the VM
that loses most against amp-fair in the same scenario.
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``compare``."""
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
        wanted = inputs.policies(args.policies or plugins.policies())
        scenarios = [inputs.load(path) for path in args.scenarios]
        drawing = None if args.plot is None else figure.empty(args.plot)
        by_scenario: dict[str, list[Row]] = {}
        for number, scenario in enumerate(scenarios, 1):
            inputs.warn(self.log, scenario)
            fair = simulation.run(scenario, plugins.load_policy(BASELINE))
            for name, policy in wanted.items():
                progress(f"{scenario.name}: {name} ({number} of {len(scenarios)})")
                result = fair if name == BASELINE else simulation.run(scenario, policy)
                by_scenario.setdefault(scenario.name, []).append(_row(name, result, fair))
        progress("")
        if drawing is not None:
            figure.draw(drawing, by_scenario, args.plot)
        messages = [f"{n}: {figure.message(figure.groups(r))}" for n, r in by_scenario.items()]
        document = rounded([row for found in by_scenario.values() for row in found])
        below = ["", *messages, "", LEGEND]
        return Answer([*COLUMNS, "Front"], _rows(by_scenario), document, below=below)


def _row(policy: str, result: Result, fair: Result) -> Row:
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


def _rows(scenarios: Mapping[str, Sequence[Row]]) -> list[list[object]]:
    """A row for every policy in every scenario; * marks the Pareto front."""
    cells: list[list[object]] = []
    for rows in scenarios.values():
        front = {p for g in figure.groups(rows) if g.front for p in g.policies}
        for row in rows:
            mark = "*" if row["policy"] in front else ""
            cells.append([*(short(row[key]) for key in COLUMNS.values()), mark])
    return cells
