"""``amp-nova reproduce``: the papers' figures, what was published beside ours."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amp_nova.sim.report import DIGITS, aligned
from amp_nova.sim.reproduce import chen2014, kumar2009, kwon2011, saez2015, teabe2017
from amp_nova.sim.reproduce.figure import Figure

EPILOG = """examples:
  amp-nova reproduce
  amp-nova reproduce kwon2011 --format json

All of it takes about a minute. What a paper does not say, and what does not come out, is in the
user guide (policies).
"""
PAPERS: Mapping[str, Callable[[], Iterator[Figure]]] = {
    "teabe2017": teabe2017.figures,
    "kwon2011": kwon2011.figures,
    "saez2015": saez2015.figures,
    "chen2014": chen2014.figures,
    "kumar2009": kumar2009.figures,
}


def add_parser(subparsers: Any) -> None:
    """Add ``reproduce`` to the command line."""
    parser = subparsers.add_parser(
        "reproduce",
        help="the papers' tables and figures, published value beside ours",
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
    papers = list(PAPERS) if args.paper is None else [args.paper]
    found: list[Figure] = []
    for paper in papers:
        for figure in PAPERS[paper]():
            found.append(figure)
            _progress(f"{paper}: {len(found)} done")
    _progress("")
    print(_json(found) if args.format == "json" else _table(found))
    return 0


def _json(found: list[Figure]) -> str:
    rows = [dataclasses.asdict(f) for f in found]
    return json.dumps([{**row, "ours": round(row["ours"], DIGITS)} for row in rows], indent=2)


def _table(found: list[Figure]) -> str:
    lines: list[str] = []
    for paper in dict.fromkeys(f.paper for f in found):
        cells = [["quantity", "where", "published", "ours"]]
        for f in found:
            if f.paper == paper:
                ours = f"{f.ours:.4g} {f.unit}".rstrip()
                cells.append([f.quantity, f.figure, f.published, ours])
        lines += [*([""] if lines else []), paper, *aligned(cells)]
    return "\n".join(lines)


def _progress(text: str) -> None:
    """Say how far it is, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
