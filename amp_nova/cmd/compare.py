"""``amp-nova compare``: several policies over several scenarios, in one table."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_nova import plugins
from amp_nova.cmd import table
from amp_nova.cmd.figure import empty, save
from amp_nova.cmd.settings import pairs
from amp_nova.cmd.table import Table
from amp_nova.cmd.terminal import progress
from amp_nova.exceptions import ConfigInvalid
from amp_nova.policies.api import Policy
from amp_nova.sim import run as simulation
from amp_nova.sim.report import Result, rounded
from amp_nova.sim.scenarios.scenario import load

EPILOG = """examples:
  amp-nova compare scenario.yaml
  amp-nova compare one.yaml two.yaml --policy amp-fair --policy acfs --plot figure.png

A policy may have parameters: --policy amp-r-fair:fair_ratio=0.35. The slowdown is that of the VM
that loses most against amp-fair in the same scenario.
"""
BASELINE = "amp-fair"
TITLES = {
    "policy": "policy",
    "throughput": "throughput",
    "asp": "ASP",
    "unfairness": "unfairness",
    "slowdown_worst": "slowdown",
    "migrations": "moves",
    "cross_llc_migrations": "of caches",
    "fast_idle_ratio": "idle",
}

Row = Mapping[str, Any]
"""One policy in one scenario: the scenario's name and the keys of ``TITLES``."""


def add_parser(subparsers: Any) -> None:
    """Add ``compare`` to the command line."""
    parser = subparsers.add_parser(
        "compare",
        description="Run several best-effort policies over scenarios and compare the results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="+", type=Path, metavar="SCENARIO.yaml")
    parser.add_argument(
        "--policy",
        action="append",
        dest="policies",
        metavar="NAME[:KEY=VALUE...]",
        help="a policy to run, may be repeated; default: all installed policies",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="plot throughput against unfairness (needs matplotlib)"
    )
    table.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; raises ``AmpError`` for invalid input."""
    names = args.policies or list(plugins.policies())
    if len(set(names)) < len(names):
        raise ConfigInvalid(f"--policy {max(names, key=names.count)} is given twice: remove one")
    wanted = {text: _policy(text) for text in names}
    scenarios = [load(path) for path in args.scenarios]
    figure = None if args.plot is None else empty(args.plot)
    rows = []
    for number, scenario in enumerate(scenarios, 1):
        fair = simulation.run(scenario, plugins.load_policy(BASELINE))
        for name, policy in wanted.items():
            progress(f"{scenario.name}: {name} ({number} of {len(scenarios)})")
            result = fair if name == BASELINE else simulation.run(scenario, policy)
            rows.append(_row(name, result, fair))
    progress("")
    table.show(args, _table(rows), rounded(rows))
    if figure is not None:
        _draw(figure, rows, args.plot)
    return 0


def _policy(text: str) -> Policy:
    """A policy from its name and parameters."""
    name, *params = text.split(":")
    return plugins.load_policy(name, **pairs(f"--policy {name}: parameter", params))


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


def _table(rows: Sequence[Row]) -> Table:
    """The rows, in a section for every scenario."""
    cells = [[row["scenario"], *(rounded(row[key]) for key in TITLES)] for row in rows]
    return Table(["scenario", *TITLES.values()], cells, sections=True)


def _draw(figure: Any, rows: Sequence[Row], path: str) -> None:
    """Throughput against unfairness: a point for every policy, a colour for every scenario."""
    axes = figure.subplots()
    for name in dict.fromkeys(row["scenario"] for row in rows):
        points = [
            (row["unfairness"], row["throughput"], row["policy"])
            for row in rows
            if row["scenario"] == name and None not in (row["unfairness"], row["throughput"])
        ]
        axes.scatter([x for x, _, _ in points], [y for _, y, _ in points], label=name)
        for x, y, policy in points:
            axes.annotate(policy, (x, y), fontsize=7)
    axes.set_xlabel("unfairness (greatest over least slowdown)")
    axes.set_ylabel("throughput (mean speed over the slowest core type)")
    axes.legend()
    save(figure, path)
