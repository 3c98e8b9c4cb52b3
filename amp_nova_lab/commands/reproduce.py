# SPDX-License-Identifier: Apache-2.0
"""``amp-nova reproduce``: the papers' figures and tables, published values beside ours."""

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from amp_nova.cmd.command import Answer, Report, progress
from amp_nova.exceptions import ConfigInvalid
from amp_nova_lab.report import rounded
from amp_nova_lab.reproduce import chen2014, kumar2009, kwon2011, saez2015, teabe2017
from amp_nova_lab.reproduce.experiment import (
    FITTED,
    IDENTITY,
    NOT_REPRODUCED,
    REPRODUCED,
    SIGN_ONLY,
    Figure,
    Paper,
    Row,
)

PAPERS: Mapping[str, Paper] = {
    module.PAPER.name: module.PAPER
    for module in (teabe2017, kwon2011, saez2015, chen2014, kumar2009)
}
COLUMNS = (
    "Paper",
    "Figure",
    "Quantity",
    "Published",
    "Ours",
    "Interval",
    "Difference",
    "Verdict",
    "If Wrong",
    "Notes",
)
VERDICTS = (REPRODUCED, SIGN_ONLY, NOT_REPRODUCED, IDENTITY, FITTED)


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A row, and where it belongs."""

    paper: Paper
    figure: Figure
    row: Row


class Reproduce(Report):
    """Run the papers' experiments again, on simulated hosts"""

    _epilog = """examples:
  amp-nova reproduce
  amp-nova reproduce kwon2011 --format json
  amp-nova reproduce kwon2011 --figure "table 3"

All papers together take about two minutes. A row is reproduced if it is within what the paper
prints, or off it by no more than a tenth of the published effect (single values: also by no more
than half a percentage point, or 0.005). Every figure also runs with wrong policies in place of its
own, or a wrong input if it is about no policy; "If Wrong" is the worst outcome. A row that agrees
even then is an identity. Identities and fitted rows are no results. If the paper
gives no number, the range is our reading of its words. The interval covers all seeds, and
plausible values of inputs that the paper does not print.
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("paper", nargs="?", choices=list(PAPERS), metavar="PAPER", help=", ".join(PAPERS))
        add("--figure", metavar="NAME", help="only this figure or table, as in 'table 3'")

    def answer(self, args: argparse.Namespace) -> Answer:
        """The rows of one paper or of all."""
        figures = select(args.paper, args.figure)
        rows = []
        for paper, figure in figures:
            for row in figure.results():
                rows.append(FigureRow(paper, figure, row))
                progress(f"{paper.name}, {figure.name}: {len(rows)} rows")
        progress("")
        notes = list(dict.fromkeys(note for each in rows for note in each.row.notes))
        papers = {paper.name: paper for paper, _ in figures}
        left_out = [f"  {name}: {text}" for name, p in papers.items() for text in p.left_out]
        return Answer(
            COLUMNS,
            _rows(rows, notes),
            rounded([document(each) for each in rows]),
            below=[
                *("", counted(rows)),
                *("", "Notes", *(f"{i:>3}  {note}" for i, note in enumerate(notes, 1))),
                *("", "Left out", *left_out),
            ],
        )


def select(paper: str | None, figure: str | None) -> list[tuple[Paper, Figure]]:
    """The figures of one paper or of all, or those with this name.

    Raises:
        ConfigInvalid: there is no figure of this name.
    """
    papers = list(PAPERS.values()) if paper is None else [PAPERS[paper]]
    every = [(p, f) for p in papers for f in p.figures]
    chosen = [(p, f) for p, f in every if figure in (None, f.name)]
    if not chosen:
        names = ", ".join(dict.fromkeys(f"'{f.name}'" for _, f in every))
        raise ConfigInvalid(f"--figure '{figure}' does not exist: choose one of {names}")
    return chosen


def document(figure_row: FigureRow) -> dict[str, object]:
    """A row of the JSON output."""
    row = figure_row.row
    return {
        "paper": figure_row.paper.name,
        "figure": figure_row.figure.name,
        "section": figure_row.figure.section,
        "quantity": row.quantity,
        "published": row.published.text,
        "ours": row.ours,
        "interval": interval(row),
        "always_agrees": row.always_agrees,
        "unit": row.unit,
        "difference": row.difference,
        "verdict": row.verdict,
        "if_wrong": row.if_wrong,
        "notes": list(row.notes),
    }


def interval(row: Row) -> str:
    """The least and greatest value of all runs; empty if they are the same."""
    ends = list(dict.fromkeys(f"{end:.3g}" for end in (row.least, row.greatest) if end is not None))
    return " to ".join(ends) if len(ends) > 1 else ""


def counted(figure_rows: Iterable[FigureRow]) -> str:
    """How many rows have each kind of verdict."""
    rows = [each.row for each in figure_rows]
    kinds = Counter(row.verdict for row in rows)
    always = sum(row.verdict == REPRODUCED and row.always_agrees for row in rows)
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in VERDICTS)
    return f"{counts}; {always} reproduced over the whole interval"


def _rows(figure_rows: Sequence[FigureRow], notes: Sequence[str]) -> list[tuple[object, ...]]:
    """One row per quantity; notes appear as numbers."""
    number = {note: str(i) for i, note in enumerate(notes, 1)}
    return [
        (
            each.paper.name,
            each.figure.name,
            each.row.quantity,
            each.row.published.text,
            f"{each.row.ours:.4g} {each.row.unit}".rstrip(),
            interval(each.row),
            float(f"{each.row.difference:.3g}"),
            each.row.verdict,
            each.row.if_wrong,
            ", ".join(number[text] for text in each.row.notes),
        )
        for each in figure_rows
    ]
