"""``amp-nova reproduce``: the papers' figures, published values beside simulated ones."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from amp_nova.cmd import table
from amp_nova.cmd.table import Cell, Table
from amp_nova.cmd.terminal import progress
from amp_nova.sim.report import rounded
from amp_nova.sim.reproduce import chen2014, kumar2009, kwon2011, saez2015, teabe2017
from amp_nova.sim.reproduce.figure import Figure

EPILOG = """examples:
  amp-nova reproduce
  amp-nova reproduce kwon2011 --format json

All papers together take about a minute. The user guide (policies) explains what the papers leave
open and which results are not reproduced.
"""
PAPERS: Mapping[str, Callable[[], Iterator[Figure]]] = {
    paper.PAPER: paper.figures for paper in (teabe2017, kwon2011, saez2015, chen2014, kumar2009)
}


def add_parser(subparsers: Any) -> None:
    """Add ``reproduce`` to the command line."""
    parser = subparsers.add_parser(
        "reproduce",
        description="Run the papers' experiments again, on simulated hosts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paper", nargs="?", choices=list(PAPERS), metavar="PAPER", help=", ".join(PAPERS)
    )
    table.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every figure of one paper or of all."""
    found: dict[str, list[Figure]] = {}
    for paper in PAPERS if args.paper is None else [args.paper]:
        found[paper] = []
        for figure in PAPERS[paper]():
            found[paper].append(figure)
            progress(f"{paper}: {len(found[paper])} done")
    progress("")
    figures = [f for figures in found.values() for f in figures]
    table.show(args, _table(found), rounded(figures))
    return 0


def _table(found: Mapping[str, Sequence[Figure]]) -> Table:
    """A row for every figure, in a section for every paper."""
    rows = [
        (paper, f.quantity, f.figure, f.published, Cell(f.ours, f"{f.ours:.4g} {f.unit}".rstrip()))
        for paper, figures in found.items()
        for f in figures
    ]
    return Table(["paper", "quantity", "where", "published", "ours"], rows, sections=True)
