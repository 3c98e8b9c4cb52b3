"""``amp-nova reproduce``: the papers' figures and tables, published values beside ours."""

import argparse
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from amp_nova.cmd.command import Answer, Report, progress
from amp_nova.exceptions import AmpError
from amp_nova.sim.commands.figure import empty, save
from amp_nova.sim.report import rounded
from amp_nova.sim.reproduce.experiment import (
    FITTED,
    NOT_REPRODUCED,
    REPRODUCED,
    SIGN_ONLY,
    Figure,
    Paper,
    Row,
)
from amp_nova.sim.reproduce.papers import PAPERS, Found, reproduce, select

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
COLORS = {
    REPRODUCED: "#2a7f3f",
    SIGN_ONLY: "#c98a00",
    NOT_REPRODUCED: "#b3261e",
    FITTED.rstrip(": "): "#777777",
}
PUBLISHED = "black"
WIDTH_IN, ROW_IN, AROUND_IN = 10.0, 0.36, 1.3
LABEL_COLUMNS = 62
"""Characters in a line of a label."""
BEYOND = 0.08
"""How far an infinite bound is drawn beyond the values, as a share of their range."""


class Reproduce(Report):
    """Run the papers' experiments again, on simulated hosts"""

    _epilog = """examples:
  amp-nova reproduce
  amp-nova reproduce kwon2011 --format json
  amp-nova reproduce kwon2011 --figure "table 3" --plot figures

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
        add(
            "--plot",
            metavar="DIR",
            help="draw every figure, with the published values, into this folder (needs "
            "matplotlib)",
        )

    def answer(self, args: argparse.Namespace) -> Answer:
        """The rows of one paper or of all."""
        figures = select(args.paper, args.figure)
        drawings = {} if args.plot is None else _drawings(args.plot, figures)
        found = []
        for result in reproduce(figures):
            found.append(result)
            progress(f"{result.paper.name}, {result.figure.name}: {len(found)} rows")
        progress("")
        for (paper, figure), (path, drawing) in zip(figures, drawings.items(), strict=False):
            rows = [r.row for r in found if (r.paper, r.figure) == (paper, figure)]
            title = f"{paper.name}, {figure.where}: {figure.title}"
            _draw(drawing, title, rows, path)
        notes = list(dict.fromkeys(note for r in found for note in _notes(r)))
        left_out = _left_out({p.name: p for p, _ in figures})
        return Answer(
            COLUMNS,
            _rows(found, notes),
            rounded([document(r) for r in found]),
            below=["", counted(found), *_explained(notes), *left_out],
        )


def _drawings(folder: str, figures: Iterable[tuple[Paper, Figure]]) -> dict[str, Any]:
    """Empty drawings by the names of their files; raises ``AmpError`` if they cannot be written."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise AmpError(f"--plot {folder} is not a folder and cannot become one: {exc}") from exc
    names = ["-".join(re.findall("[a-z0-9]+", f"{p.name} {f.name}")) for p, f in figures]
    return {path: empty(path) for path in (f"{folder}/{name}.png" for name in names)}


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
        "cause": _cause(found),
    }


def counted(found: Iterable[Found]) -> str:
    """How many rows have each kind of verdict."""
    kinds = Counter(r.row.verdict.split(":")[0] for r in found)
    return ", ".join(f"{kinds[kind]} {kind}" for kind in VERDICTS)


def _cause(found: Found) -> str | None:
    """Why a row is not reproduced; ``None`` if it is."""
    known = found.row.cause and found.row.verdict in (SIGN_ONLY, NOT_REPRODUCED)
    return found.row.cause if known else None


def _notes(found: Found) -> tuple[str, ...]:
    assumed = tuple(f"assumed: {text}" for text in found.row.assumptions)
    cause = _cause(found)
    return assumed if cause is None else (*assumed, f"cause: {cause}")


def _rows(found: Sequence[Found], notes: Sequence[str]) -> list[tuple[object, ...]]:
    """One row per quantity; notes appear as numbers."""
    number = {note: str(i) for i, note in enumerate(notes, 1)}
    return [
        (
            result.paper.name,
            result.figure.name,
            result.row.quantity,
            result.row.published.text,
            f"{result.row.ours:.4g} {result.row.unit}".rstrip(),
            float(f"{result.row.difference:.3g}"),
            result.row.verdict,
            ", ".join(number[text] for text in _notes(result)),
        )
        for result in found
    ]


def _explained(notes: Sequence[str]) -> list[str]:
    return ["", "Notes", *(f"{i:>3}  {note}" for i, note in enumerate(notes, 1))]


def _left_out(papers: dict[str, Paper]) -> list[str]:
    texts = [f"  {name}: {text}" for name, paper in papers.items() for text in paper.left_out]
    return ["", "Left out", *texts]


def _draw(figure: Any, title: str, rows: Sequence[Row], path: str) -> None:
    """Draw the rows of one figure of a paper, and save it."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(row.unit, []).append(row)
    lines = [sum(1 + _label(r).count("\n") for r in members) for members in panels.values()]
    heights = [AROUND_IN + ROW_IN * count for count in lines]
    figure.set_size_inches(WIDTH_IN, sum(heights) + 0.5)
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (unit, members) in zip(grid, panels.items(), strict=True):
        _panel(axes, members)
        axes.set_xlabel(unit or "ratio or number")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    save(figure, path)


def _label(row: Row) -> str:
    return textwrap.fill(row.quantity, LABEL_COLUMNS)


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """The least and greatest finite value in a panel, with a margin."""
    values = [v for r in rows for v in (r.ours, r.published.low, r.published.high)]
    finite = [v for v in values if math.isfinite(v)]
    low, high = min(finite), max(finite)
    margin = BEYOND * ((high - low) or abs(high) or 1.0)
    return low - margin, high + margin


def _panel(axes: Any, rows: Sequence[Row]) -> None:
    low, high = _limits(rows)
    ys = range(len(rows))
    lows = [max(row.published.low, low) for row in rows]
    highs = [min(row.published.high, high) for row in rows]
    axes.hlines(ys, lows, highs, color=PUBLISHED, linewidth=5, alpha=0.2)
    bounds = {"marker": "|", "markersize": 13, "linestyle": "none", "color": PUBLISHED}
    axes.plot([*lows, *highs], [*ys, *ys], label="published", **bounds)
    for verdict, color in COLORS.items():
        ours = [(r.ours, y) for y, r in enumerate(rows) if r.verdict.split(":")[0] == verdict]
        if ours:
            label = f"ours: {verdict}"
            axes.plot(*zip(*ours, strict=True), "o", markersize=7, color=color, label=label)
    axes.set_yticks(ys, [_label(row) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(low, high)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=5, fontsize=8, frameon=False)
