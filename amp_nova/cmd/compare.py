"""``amp-nova compare``: several policies over several scenarios, one table."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amp_nova import plugins
from amp_nova.exceptions import AmpError, ConfigInvalid
from amp_nova.policies.api import Policy
from amp_nova.sim import report
from amp_nova.sim import run as simulation
from amp_nova.sim.report import Result
from amp_nova.sim.scenarios.scenario import load

EPILOG = """examples:
  amp-nova compare scenario.yaml
  amp-nova compare one.yaml two.yaml --policy amp-fair --policy acfs --plot figure.png

A policy may carry parameters: --policy amp-r-fair:fair_ratio=0.35. The slowdown is that of whoever
loses most against amp-fair in the same scenario.
"""
BASELINE = "amp-fair"


@dataclass(frozen=True, slots=True)
class Row:
    """One policy in one scenario; ``slowdown_worst``: what whoever loses most loses, as a share."""

    scenario: str
    policy: str
    throughput: float | None
    asp: float | None
    unfairness: float | None
    slowdown_worst: float | None
    migrations: int
    cross_llc_migrations: int
    fast_idle_ratio: float


def add_parser(subparsers: Any) -> None:
    """Add ``compare`` to the command line."""
    parser = subparsers.add_parser(
        "compare",
        help="run several policies over scenarios, one table",
        description="Run several best-effort policies over scenarios and put the results together.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="+", type=Path, metavar="SCENARIO.yaml")
    parser.add_argument(
        "--policy",
        action="append",
        dest="policies",
        metavar="NAME[:KEY=VALUE...]",
        help="a policy to run, may be repeated; default: all that are installed",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw it (needs matplotlib)")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; bad input is an ``AmpError``."""
    names = args.policies or list(plugins.policies())
    if len(set(names)) < len(names):
        raise ConfigInvalid(f"--policy {max(names, key=names.count)} is given twice: keep one")
    wanted = {text: _policy(text) for text in names}
    loaded = [load(path) for path in args.scenarios]
    plot = None if args.plot is None else _plotter(args.plot)
    rows = []
    for number, made in enumerate(loaded):
        fair = simulation.run(made, plugins.load_policy(BASELINE))
        for name, policy in wanted.items():
            _progress(f"{made.name}: {name} ({number + 1} of {len(loaded)})")
            result = fair if name == BASELINE else simulation.run(made, policy)
            rows.append(_row(replace(result, policy=name), fair))
    _progress("")
    print(_json(rows) if args.format == "json" else _table(rows))
    if plot is not None:
        _draw(plot, rows, args.plot)
    return 0


def _policy(text: str) -> Policy:
    """A policy from its name and parameters."""
    name, *pairs = text.split(":")
    params: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key in params:
            raise ConfigInvalid(f"--policy {text} is not allowed: write NAME:KEY=VALUE, each once")
        params[key] = value
    return plugins.load_policy(name, **params)


def _row(result: Result, fair: Result) -> Row:
    losses = [
        1.0 - vm.progress_refcores / even.progress_refcores
        for name, vm in result.vms.items()
        if (even := fair.vms[name]).progress_refcores
    ]
    return Row(
        result.scenario,
        result.policy,
        result.throughput,
        result.asp,
        result.unfairness,
        max(0.0, *losses) if losses else None,
        result.migrations,
        result.cross_llc_migrations,
        result.fast_idle_ratio,
    )


def _rounded(row: Row) -> dict[str, object]:
    fields = {name: getattr(row, name) for name in Row.__slots__}
    return {k: round(v, report.DIGITS) if isinstance(v, float) else v for k, v in fields.items()}


def _json(rows: Sequence[Row]) -> str:
    return json.dumps([_rounded(row) for row in rows], indent=2)


def _table(rows: Sequence[Row]) -> str:
    titles = ["policy", "throughput", "ASP", "unfairness", "slowdown", "moves", "of caches", "idle"]
    lines: list[str] = []
    for name in dict.fromkeys(row.scenario for row in rows):
        cells = [titles]
        for row in rows:
            if row.scenario == name:
                values = list(_rounded(row).values())[1:]
                cells.append(["-" if v is None else _cell(v) for v in values])
        lines += [*([""] if lines else []), name, *report.aligned(cells)]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _progress(text: str) -> None:
    """Say what is being run, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _plotter(path: str) -> Any:
    """An empty figure; what it cannot be saved as is refused before anything is run."""
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise AmpError("--plot needs matplotlib: install amp-nova[plot]") from exc
    figure = Figure(figsize=(8, 5), layout="constrained")
    known = sorted(figure.canvas.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".").lower() not in known:
        raise AmpError(f"--plot {path!r} is not allowed: end the name in .{', .'.join(known)}")
    if not Path(path).parent.is_dir():
        raise AmpError(f"--plot {path!r} cannot be written: make its folder first")
    return figure


def _draw(figure: Any, rows: Sequence[Row], path: str) -> None:
    """Throughput against unfairness, a point for every policy, a colour for every scenario."""
    axes = figure.subplots()
    for name in dict.fromkeys(row.scenario for row in rows):
        here = [r for r in rows if r.scenario == name and None not in (r.unfairness, r.throughput)]
        axes.scatter([r.unfairness for r in here], [r.throughput for r in here], label=name)
        for row in here:
            axes.annotate(row.policy, (row.unfairness, row.throughput), fontsize=7)
    axes.set_xlabel("unfairness (greatest over least slowdown)")
    axes.set_ylabel("throughput (mean speed over the slowest core type)")
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as exc:
        raise AmpError(f"--plot {path} cannot be written: {exc}") from exc
