"""``amp-nova reproduce``: the papers' figures and tables, published values beside ours."""

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from amp_nova.cmd.command import Answer, Report, progress
from amp_nova.exceptions import ConfigInvalid
from amp_nova.sim.report import rounded
from amp_nova.sim.reproduce import chen2014, kumar2009, kwon2011, saez2015, teabe2017
from amp_nova.sim.reproduce.experiment import (
    FITTED,
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
    "Difference",
    "Verdict",
    "Notes",
)
VERDICTS = (REPRODUCED, SIGN_ONLY, NOT_REPRODUCED, FITTED.rstrip(": "))


class Found(NamedTuple):
    """A row, and where it belongs."""

    paper: Paper
    figure: Figure
    row: Row

    @property
    def cause(self) -> str | None:
        """Why it is not reproduced; ``None`` if it is."""
        known = self.row.cause and self.row.verdict in (SIGN_ONLY, NOT_REPRODUCED)
        return self.row.cause if known else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, and the cause."""
        assumed = tuple(f"assumed: {text}" for text in self.row.assumptions)
        return assumed if self.cause is None else (*assumed, f"cause: {self.cause}")


class Reproduce(Report):
    """Run the papers' experiments again, on simulated hosts"""

    _epilog = """examples:
  amp-nova reproduce
  amp-nova reproduce kwon2011 --format json
  amp-nova reproduce kwon2011 --figure "table 3"

All papers together take about two minutes. A row is reproduced if it is within what the paper
prints, or off it by no more than a tenth of the published effect (single values: also by no more
than half a percentage point, or 0.005). If the paper gives no number, the range is our reading of
its words.
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``reproduce``."""
        add = parser.add_argument
        add("paper", nargs="?", choices=list(PAPERS), metavar="PAPER", help=", ".join(PAPERS))
        add("--figure", metavar="NAME", help="only this figure or table, as in 'table 3'")

    def answer(self, args: argparse.Namespace) -> Answer:
        """The rows of one paper or of all."""
        figures = select(args.paper, args.figure)
        found = []
        for paper, figure in figures:
            for row in figure.rows():
                found.append(Found(paper, figure, row))
                progress(f"{paper.name}, {figure.name}: {len(found)} rows")
        progress("")
        notes = list(dict.fromkeys(note for each in found for note in each.notes))
        papers = {paper.name: paper for paper, _ in figures}
        left_out = [f"  {name}: {text}" for name, p in papers.items() for text in p.left_out]
        return Answer(
            COLUMNS,
            _rows(found, notes),
            rounded([document(each) for each in found]),
            below=[
                *("", counted(found)),
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
        known = ", ".join(dict.fromkeys(f"'{f.name}'" for _, f in every))
        raise ConfigInvalid(f"--figure '{figure}' is not known: choose one of {known}")
    return chosen


def document(found: Found) -> dict[str, object]:
    """A row of the JSON output."""
    row = found.row
    return {
        "paper": found.paper.name,
        "figure": found.figure.name,
        "section": found.figure.section,
        "quantity": row.quantity,
        "published": row.published.text,
        "ours": row.ours,
        "unit": row.unit,
        "difference": row.difference,
        "verdict": row.verdict,
        "assumptions": list(row.assumptions),
        "cause": found.cause,
    }


def counted(found: Iterable[Found]) -> str:
    """How many rows have each kind of verdict."""
    kinds = Counter(each.row.verdict.split(":")[0] for each in found)
    return ", ".join(f"{kinds[kind]} {kind}" for kind in VERDICTS)


def _rows(found: Sequence[Found], notes: Sequence[str]) -> list[tuple[object, ...]]:
    """One row per quantity; notes appear as numbers."""
    number = {note: str(i) for i, note in enumerate(notes, 1)}
    return [
        (
            paper.name,
            figure.name,
            row.quantity,
            row.published.text,
            f"{row.ours:.4g} {row.unit}".rstrip(),
            float(f"{row.difference:.3g}"),
            row.verdict,
            ", ".join(number[text] for text in each.notes),
        )
        for each in found
        for paper, figure, row in (each,)
    ]
