# SPDX-License-Identifier: Apache-2.0
"""Figures of the commands, drawn with matplotlib where that is installed.

The largest shows which policies are worth choosing: groups with equal results that no other beats.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amp_nova.exceptions import AmpError

TOLERANCE_RATIO = 0.005
"""Results that differ by less than this count as equal."""
NAMES_MAX = 3
WIDTH_IN, PANEL_IN = 9.0, 5.2
FRONT, BEATEN = "#1f5fa8", "#9a9a9a"

Row = Mapping[str, Any]
"""The result of one policy: ``policy``, ``throughput`` and ``unfairness`` are read here."""


@dataclass(frozen=True, slots=True)
class BarGroup:
    """Policies whose throughput and unfairness coincide; ``front``: no other group beats them.

    A group beats another that it equals or exceeds in both, and exceeds in one.
    """

    policies: tuple[str, ...]
    throughput: float
    unfairness: float
    front: bool = True

    @property
    def names(self) -> str:
        """The names of the first few policies, and how many more there are."""
        more = len(self.policies) - NAMES_MAX
        names = ", ".join(self.policies[:NAMES_MAX])
        return names if more <= 0 else f"{names} and {more} more"


def groups(rows: Sequence[Row]) -> list[BarGroup]:
    """The groups of one scenario's policies, the most throughput first.

    Policies without a throughput or an unfairness are left out.
    """
    clusters: list[list[Row]] = []
    for row in rows:
        if row["throughput"] is None or row["unfairness"] is None:
            continue
        same = next((group for group in clusters if _same(group[0], row)), None)
        if same is None:
            clusters.append([row])
        else:
            same.append(row)
    made = [
        BarGroup(tuple(r["policy"] for r in group), group[0]["throughput"], group[0]["unfairness"])
        for group in clusters
    ]
    made.sort(key=lambda g: (-g.throughput, g.unfairness))
    return [replace(g, front=not any(_beats(other, g) for other in made)) for g in made]


def _same(one: Row, other: Row) -> bool:
    return not any(_compared(one[key], other[key]) for key in ("throughput", "unfairness"))


def _beats(one: BarGroup, other: BarGroup) -> bool:
    throughput = _compared(one.throughput, other.throughput)
    fairness = _compared(other.unfairness, one.unfairness)
    return min(throughput, fairness) >= 0 and max(throughput, fairness) > 0


def _compared(one: float, other: float) -> int:
    """1 if it is greater, -1 if it is less, 0 if both count as equal."""
    if abs(one - other) <= TOLERANCE_RATIO * max(abs(one), abs(other)):
        return 0
    return 1 if one > other else -1


def message(groups: Sequence[BarGroup]) -> str:
    """What the comparison says, in one sentence."""
    front = [group for group in groups if group.front]
    if not front:
        return "No policy has both a throughput and an unfairness."
    most, fairest = front[0], min(front, key=lambda g: g.unfairness)
    if most is fairest:
        return f"The most throughput and the least unfairness: {most.names}."
    between = [g.names for g in front if g is not most and g is not fairest]
    parts = [
        f"The most throughput: {most.names} ({most.throughput:.3f})",
        f"the least unfairness: {fairest.names} ({fairest.unfairness:.3f})",
        *([f"in between: {'; '.join(between)}"] if between else []),
    ]
    return "; ".join(parts) + "."


def draw(figure: Any, scenarios: Mapping[str, Sequence[Row]], path: str) -> None:
    """Draw throughput against unfairness, and save it."""
    figure.set_size_inches(WIDTH_IN, PANEL_IN * len(scenarios))
    panels = figure.subplots(len(scenarios), squeeze=False)[:, 0]
    for axes, (name, rows) in zip(panels, scenarios.items(), strict=True):
        _panel(axes, name, groups(rows))
    save(figure, path)


def _panel(axes: Any, name: str, groups: Sequence[BarGroup]) -> None:
    front = [g for g in groups if g.front]
    beaten = [g for g in groups if not g.front]
    # A step, not a straight line: there is no policy between two neighbours on the front.
    axes.step(
        [g.unfairness for g in front][::-1],
        [g.throughput for g in front][::-1],
        where="post",
        color=FRONT,
        linewidth=1,
        alpha=0.5,
    )
    for points, color, label, size in (
        (front, FRONT, "* Pareto front: none is better in both", 55),
        (beaten, BEATEN, "beaten in both by one of the front", 30),
    ):
        where = [g.unfairness for g in points], [g.throughput for g in points]
        axes.scatter(*where, s=size, color=color, label=label, zorder=3)
    for group in front:  # above left of it, where no point is
        axes.annotate(
            group.names,
            (group.unfairness, group.throughput),
            xytext=(-6, 4),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=FRONT,
            fontweight="bold",
            zorder=4,
        )
    axes.margins(0.15, 0.1)
    title = textwrap.fill(message(groups), 95, break_on_hyphens=False)
    axes.set_title(f"{name}\n{title}", fontsize=9, loc="left")
    axes.set_xlabel("unfairness (greatest over least slowdown; 1 is best)")
    axes.set_ylabel("throughput (mean speed; 1 = slowest core type)")
    axes.grid(alpha=0.25)
    axes.legend(loc="best", fontsize=8, frameon=False)


def empty(path: str, width_in: float = 8, height_in: float = 5) -> Any:
    """An empty figure; raises ``AmpError`` before any work if it cannot be saved as ``path``."""
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise AmpError("--plot needs matplotlib: install amp-nova[plot]") from exc
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    formats = sorted(figure.canvas.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".").lower() not in formats:
        endings = ", .".join(formats)
        raise AmpError(f"--plot {path!r} has no supported format: end the name in .{endings}")
    if not Path(path).parent.is_dir():
        raise AmpError(f"--plot {path!r} cannot be written: create its folder first")
    return figure


def save(figure: Any, path: str) -> None:
    """Write the figure, the same bytes for the same content; raises ``AmpError``."""
    from matplotlib import rc_context

    undated = {"metadata": {"Date": None}} if path.lower().endswith(".svg") else {}
    try:
        with rc_context({"svg.hashsalt": "amp-nova"}):
            figure.savefig(path, **undated)
    except (OSError, ValueError) as exc:
        raise AmpError(f"--plot {path} cannot be written: {exc}") from exc
