"""Figures of ``amp-nova reproduce --plot``: published values in black, ours in colour.

Rows are drawn one below the other, in one panel for each unit.
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
PUBLISHED = "black"
WIDTH_IN, ROW_IN, AROUND_IN = 10.0, 0.36, 1.3
LABEL_COLUMNS = 62
"""Characters in a line of a label."""
BEYOND = 0.08
"""How far an infinite bound is drawn beyond the values, as a share of their range."""


def draw(figure: Any, title: str, rows: Sequence[Row], path: str) -> None:
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
