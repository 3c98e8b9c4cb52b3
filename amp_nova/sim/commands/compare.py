"""``amp-nova compare``: several policies over several scenarios, in one table."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_nova import plugins
from amp_nova.cmd import table
from amp_nova.cmd.table import Table, cell
from amp_nova.cmd.terminal import progress
from amp_nova.exceptions import ConfigInvalid
from amp_nova.sim import run as simulation
from amp_nova.sim.commands import agent_options, pareto
from amp_nova.sim.commands.figure import empty
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

LEGEND = """\
front: * if no other policy is better in both throughput and unfairness (by 0.5 % or more).
throughput: mean speed of the VMs, 1 = the slowest core type. ASP: sum of their gains over it.
unfairness: greatest over least slowdown, 1 is best. slowdown: of the VM that loses most against
amp-fair, as a share of its speed. moves: to another pCPU; of caches: to another last-level cache.
idle: share of the fast cores' time."""
Row = Mapping[str, Any]
"""One policy in one scenario: the scenario's name and the keys of ``TITLES``."""


def add_parser(subparsers: Any) -> None:
    """Add ``compare`` to the command line."""
    parser = subparsers.add_parser(
        "compare",
        description="Run several best-effort policies over scenarios and compare the results.",
        epilog=EPILOG,
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
        "--plot",
        metavar="FILE",
        help="plot throughput against unfairness, with the Pareto front (needs matplotlib)",
    )
    table.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; raises ``AmpError`` for invalid input."""
    names = args.policies or list(plugins.policies())
    if len(set(names)) < len(names):
        raise ConfigInvalid(f"--policy {max(names, key=names.count)} is given twice: remove one")
    wanted = {text: plugins.read_policy(text) for text in names}
    scenarios = [load(path, agent_options.read) for path in args.scenarios]
    figure = None if args.plot is None else empty(args.plot)
    by_scenario: dict[str, list[Row]] = {}
    for number, scenario in enumerate(scenarios, 1):
        fair = simulation.run(scenario, plugins.load_policy(BASELINE))
        for name, policy in wanted.items():
            progress(f"{scenario.name}: {name} ({number} of {len(scenarios)})")
            result = fair if name == BASELINE else simulation.run(scenario, policy)
            by_scenario.setdefault(scenario.name, []).append(_row(name, result, fair))
    progress("")
    messages = [f"{n}: {pareto.message(pareto.groups(r))}" for n, r in by_scenario.items()]
    around = ((), ["", *messages, "", LEGEND])
    whole = args.format == "table" and not args.columns and args.sort is None
    rows = [row for found in by_scenario.values() for row in found]
    table.show(args, _table(by_scenario, grouped=whole), rounded(rows), around)
    if figure is not None:
        pareto.draw(figure, by_scenario, args.plot)
    return 0


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


def _table(scenarios: Mapping[str, Sequence[Row]], *, grouped: bool) -> Table:
    """The rows, in a section for every scenario; * marks the Pareto front.

    ``grouped``: policies with the same result share a row.
    """
    cells = []
    for scenario, rows in scenarios.items():
        front = {p for g in pareto.groups(rows) if g.front for p in g.policies}
        groups: dict[object, list[Row]] = {}
        for row in rows:
            mark = "*" if row["policy"] in front else ""
            shown = tuple(cell(rounded(row[key])) for key in TITLES if key != "policy")
            groups.setdefault((mark, shown) if grouped else row["policy"], []).append(row)
        for same in groups.values():
            values = [rounded(same[0][key]) for key in TITLES if key != "policy"]
            mark = "*" if same[0]["policy"] in front else ""
            cells.append([scenario, ", ".join(r["policy"] for r in same), *values, mark])
    return Table(["scenario", *TITLES.values(), "front"], cells, sections=True)
