"""``amp-nova reproduce``: the papers' figures, published values beside simulated ones."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from amp_nova.cmd.table import sections
from amp_nova.cmd.terminal import progress
from amp_nova.sim.report import to_json
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
        help="the papers' tables and figures, published values beside ours",
        description="Run the papers' experiments again, on simulated hosts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paper", nargs="?", choices=list(PAPERS), metavar="PAPER", help=", ".join(PAPERS)
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
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
    if args.format == "json":
        print(to_json([f for figures in found.values() for f in figures]))
    else:
        print(sections({paper: _rows(figures) for paper, figures in found.items()}))
    return 0


def _rows(figures: Sequence[Figure]) -> list[list[str]]:
    head = ["quantity", "where", "published", "ours"]
    ours = [f"{f.ours:.4g} {f.unit}".rstrip() for f in figures]
    return [
        head,
        *([f.quantity, f.figure, f.published, o] for f, o in zip(figures, ours, strict=True)),
    ]
