"""The figure of ``amp-nova compare``: one panel per scenario, with its Pareto front labelled."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from amp_nova.cmd import pareto
from amp_nova.cmd.figure import save
from amp_nova.cmd.pareto import Group

WIDTH_IN, PANEL_IN = 9.0, 5.2
FRONT, BEATEN = "#1f5fa8", "#9a9a9a"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
KEY_COLUMNS = 34
"""Characters in a line of the key."""


def draw(figure: Any, scenarios: Mapping[str, Sequence[pareto.Row]], path: str) -> None:
    """Draw throughput against unfairness, and save it."""
    figure.set_size_inches(WIDTH_IN, PANEL_IN * len(scenarios))
    panels = figure.subplots(len(scenarios), squeeze=False)[:, 0]
    for axes, (name, rows) in zip(panels, scenarios.items(), strict=True):
        _panel(axes, name, pareto.groups(rows))
    save(figure, path)


def _panel(axes: Any, name: str, groups: Sequence[Group]) -> None:
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
    _points(axes, front, FRONT, "* Pareto front: none is better in both", 55)
    _points(axes, beaten, BEATEN, "beaten in both by one of the front", 30)
    for group in front:
        _label(axes, group, group.names)
    for letter, group in zip(LETTERS, beaten, strict=False):
        _label(axes, group, letter)
    axes.margins(0.15, 0.1)
    message = textwrap.fill(pareto.message(groups), 95, break_on_hyphens=False)
    axes.set_title(f"{name}\n{message}", fontsize=9, loc="left")
    axes.set_xlabel("unfairness (greatest over least slowdown; 1 is best)")
    axes.set_ylabel("throughput (mean speed; 1 = slowest core type)")
    axes.grid(alpha=0.25)
    _key(axes, front, beaten)


def _points(axes: Any, groups: Sequence[Group], color: str, label: str, size: int) -> None:
    axes.scatter(
        [g.unfairness for g in groups],
        [g.throughput for g in groups],
        s=size,
        color=color,
        label=label,
        zorder=3,
    )


def _label(axes: Any, group: Group, text: str) -> None:
    """Label a point: above left on the front, where no point is, and below right elsewhere."""
    axes.annotate(
        text,
        (group.unfairness, group.throughput),
        xytext=(-6, 4) if group.front else (5, -10),
        textcoords="offset points",
        ha="right" if group.front else "left",
        fontsize=8 if group.front else 9,
        color=FRONT if group.front else BEATEN,
        fontweight="bold" if group.front else "normal",
        zorder=4,
    )


def _key(axes: Any, front: Sequence[Group], beaten: Sequence[Group]) -> None:
    """The legend, and beside the panel all policies of each group, the front first."""
    marked = [*(("*", g) for g in front), *zip(LETTERS, beaten, strict=False)]
    lines = [
        textwrap.fill(
            f"{mark}  {', '.join(group.policies)}",
            KEY_COLUMNS,
            subsequent_indent="   ",
            break_on_hyphens=False,
        )
        for mark, group in marked
    ]
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False)
    axes.annotate(
        "\n".join(lines),
        (1.02, 0.84),
        xycoords="axes fraction",
        fontsize=8,
        family="monospace",
        verticalalignment="top",
    )
