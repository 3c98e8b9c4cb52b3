"""Figures of ``amp-nova reproduce --plot``: published values in black, ours in colour.

Rows with an x value are drawn as lines, the others one below the other. There is one panel for each
unit.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from amp_nova.cmd.figure import save
from amp_nova.sim.reproduce.figure import FITTED, NOT_REPRODUCED, REPRODUCED, SIGN_ONLY, Row

COLORS = {
    REPRODUCED: "#2a7f3f",
    SIGN_ONLY: "#c98a00",
    NOT_REPRODUCED: "#b3261e",
    FITTED.rstrip(": "): "#777777",
}
LINES = ("#1f5fa8", "#b3261e", "#2a7f3f", "#7b3fa0", "#c98a00", "#444444")
PUBLISHED = "black"
WIDTH_IN, ROW_IN, LINES_IN, AROUND_IN = 10.0, 0.36, 4.2, 1.3
LABEL_COLUMNS = 62
"""Characters in a line of a label."""
BEYOND = 0.08
"""How far an infinite bound is drawn beyond the values, as a share of their range."""


def draw(figure: Any, title: str, x: str, rows: Sequence[Row], path: str) -> None:
    """Draw the rows of one figure of a paper, and save it; ``x`` labels the axis of lines."""
    panels: dict[tuple[bool, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row.at is not None, row.unit), []).append(row)
    heights = [
        LINES_IN if lines else AROUND_IN + ROW_IN * sum(map(_label_lines, members))
        for (lines, _), members in panels.items()
    ]
    figure.set_size_inches(WIDTH_IN, sum(heights) + 0.5)
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, ((lines, unit), members) in zip(grid, panels.items(), strict=True):
        (_lines if lines else _below_each_other)(axes, members)
        axes.grid(alpha=0.25)
        (axes.set_ylabel if lines else axes.set_xlabel)(unit or "ratio or number")
        if lines:
            axes.set_xlabel(x)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    save(figure, path)


def _label(row: Row) -> str:
    return textwrap.fill(row.quantity, LABEL_COLUMNS)


def _label_lines(row: Row) -> int:
    return 1 + _label(row).count("\n")


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """The least and greatest finite value in a panel, with a margin."""
    values = [v for r in rows for v in (r.ours, r.published.low, r.published.high)]
    finite = [v for v in values if math.isfinite(v)]
    low, high = min(finite), max(finite)
    margin = BEYOND * ((high - low) or abs(high) or 1.0)
    return low - margin, high + margin


def _below_each_other(axes: Any, rows: Sequence[Row]) -> None:
    low, high = _limits(rows)
    for y, row in enumerate(rows):
        ends = max(row.published.low, low), min(row.published.high, high)
        axes.plot(ends, (y, y), color=PUBLISHED, linewidth=5, alpha=0.2, solid_capstyle="butt")
        for end, bound in zip(ends, (row.published.low, row.published.high), strict=True):
            if math.isfinite(bound):
                axes.plot(end, y, marker="|", markersize=13, color=PUBLISHED)
        color = COLORS[row.verdict.split(":")[0]]
        axes.plot(row.ours, y, marker="o", markersize=7, color=color)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(low, high)
    _key(axes, {r.verdict.split(":")[0] for r in rows})


def _key(axes: Any, verdicts: set[str]) -> None:
    axes.plot(
        [],
        [],
        color=PUBLISHED,
        linewidth=5,
        alpha=0.5,
        marker="|",
        markersize=13,
        label="published",
    )
    for verdict, color in COLORS.items():
        if verdict in verdicts:
            axes.plot([], [], marker="o", color=color, linestyle="none", label=f"ours: {verdict}")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=5, fontsize=8, frameon=False)


def _lines(axes: Any, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(row.at.line for row in rows if row.at))
    low, high = _limits(rows)
    for at, (name, color) in enumerate(zip(names, LINES * len(names), strict=False)):
        mine = [(row.at.x, row) for row in rows if row.at and row.at.line == name]
        xs = [x for x, _ in mine]
        # The last one on top, so that lines that coincide are all seen.
        width = 1.5 + 1.2 * (len(names) - 1 - at)
        ours = [r.ours for _, r in mine]
        axes.plot(
            xs, ours, marker="o", color=color, linewidth=width, markersize=width + 4, label=name
        )
        # Published ranges of several lines at the same x stay apart.
        apart = (at - (len(names) - 1) / 2) * (max(xs) - min(xs)) * 0.012
        for x, row in mine:
            ends = max(row.published.low, low), min(row.published.high, high)
            axes.plot((x + apart, x + apart), ends, color=color, linewidth=5, alpha=0.25)
            axes.plot(
                [x + apart] * 2, ends, linestyle="none", marker="_", color=color, markersize=11
            )
    axes.plot(
        [],
        [],
        linewidth=5,
        alpha=0.25,
        color=PUBLISHED,
        label="lines: ours; bars: published, in the same colour",
    )
    axes.set_ylim(low, high)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=8, frameon=False)
