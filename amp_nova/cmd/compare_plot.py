"""The figure of ``amp-nova compare``: one panel per scenario, with its Pareto front."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from amp_nova.cmd import pareto
from amp_nova.cmd.figure import save
from amp_nova.cmd.pareto import Group

WIDTH_IN, PANEL_IN = 9.0, 5.2
FRONT, BEATEN = "#1f5fa8", "#777777"


def draw(figure: Any, scenarios: Mapping[str, Sequence[pareto.Row]], path: str) -> None:
    """Draw throughput against unfairness, and save it."""
    figure.set_size_inches(WIDTH_IN, PANEL_IN * len(scenarios))
    panels = figure.subplots(len(scenarios), squeeze=False)[:, 0]
    for axes, (name, rows) in zip(panels, scenarios.items(), strict=True):
        _panel(axes, name, pareto.groups(rows))
    save(figure, path)


def _panel(axes: Any, name: str, groups: Sequence[Group]) -> None:
    front = [g for g in groups if g.front]
    # A step, not a straight line: there is no policy between two neighbours on the front.
    unfairness, throughput = [g.unfairness for g in front], [g.throughput for g in front]
    axes.step(unfairness[::-1], throughput[::-1], where="post", color=FRONT, linewidth=1, alpha=0.5)
    _points(axes, front, FRONT, "* Pareto front: none is better in both")
    _points(axes, [g for g in groups if not g.front], BEATEN, "beaten in both by one of the front")
    axes.margins(0.15, 0.1)
    message = textwrap.fill(pareto.message(groups), 95, break_on_hyphens=False)
    axes.set_title(f"{name}\n{message}", fontsize=9, loc="left")
    axes.set_xlabel("unfairness (greatest over least slowdown; 1 is best)")
    axes.set_ylabel("throughput (mean speed; 1 = slowest core type)")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)


def _points(axes: Any, groups: Sequence[Group], color: str, label: str) -> None:
    """Points with their names: above left on the front, where no point is, else below right."""
    unfairness, throughput = [g.unfairness for g in groups], [g.throughput for g in groups]
    axes.plot(unfairness, throughput, "o", color=color, label=label)
    for group in groups:
        axes.annotate(
            group.names,
            (group.unfairness, group.throughput),
            xytext=(-6, 4) if group.front else (5, -10),
            textcoords="offset points",
            ha="right" if group.front else "left",
            fontsize=8,
            color=color,
        )
