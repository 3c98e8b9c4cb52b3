"""Lines and stacked areas as inline SVG, without a script; time runs from left to right.

The drawing stretches with the page, but the width of its lines does not change. Labels are HTML.
Colours are classes that the page's style sheet defines.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 600, 100
Values = Sequence[float | None]
"""One value for each time; ``None`` leaves a gap."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line or area in steps: a value applies since the previous time. ``css``: its class."""

    css: str
    values: Values


@dataclass(frozen=True, slots=True)
class Frame:
    """The axes of a chart.

    ``says``: what it shows, in words; ``times_s``: the times of all values; ``until_s`` and
    ``span_s``: end and length of the time axis.
    """

    says: str
    times_s: Sequence[float]
    until_s: float
    span_s: float
    unit: str = ""

    def x(self, time_s: float) -> float:
        """The x coordinate of a time."""
        return WIDTH * (1.0 - (self.until_s - time_s) / self.span_s)


def text(value: str) -> str:
    """Text, escaped for HTML."""
    return html.escape(value, quote=True)


def nice_top(value: float) -> float:
    """A round number of at least ``value``, for the top of an axis."""
    if value <= 0.0:
        return 1.0
    power = 1.0
    while power < value:
        power *= 10.0
    while power / 10.0 >= value:
        power /= 10.0
    return next(
        top
        for part in (0.1, 0.12, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
        if (top := part * power) >= value
    )


def figure(number: float) -> str:
    """A number in at most three significant digits, with a prefix above 10,000."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if prefix == 'k' else size):.3g} {prefix}"
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"


def lines(frame: Frame, shown: Sequence[Line], areas: Sequence[Line] = ()) -> str:
    """A chart of lines, over areas that are stacked on each other."""
    stacked, below = [], [0.0] * len(frame.times_s)
    for area in areas:
        above = [b + (v or 0.0) for b, v in zip(below, area.values, strict=True)]
        stacked.append((area.css, below, above))
        below = above
    highest = max((v for line in shown for v in line.values if v is not None), default=0.0)
    top = nice_top(max(highest * 1.02, *below, 0.0) if below else highest)
    drawn = [_area(frame, top, *area) for area in stacked if any(area[2])]
    drawn += [_line(frame, top, line) for line in shown]
    grid = "".join(
        f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>' for y in (0, HEIGHT // 2)
    )
    says = text(frame.says)
    unit = f" {frame.unit}" if frame.unit else ""
    began = f"{frame.span_s / 60.0:g} min ago"
    return (
        f'<figure class="chart"><div class="y"><span>{figure(top)}{unit}</span>'
        f"<span>{figure(top / 2)}</span><span>0</span></div>"
        f'<svg role="img" aria-label="{says}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none"><title>{says}</title>{grid}{"".join(drawn)}</svg>'
        f'<div class="x"><span>{began}</span><span>now</span></div></figure>'
    )


def _y(value: float, top: float) -> str:
    return f"{HEIGHT * (1.0 - min(value, top) / top):.1f}"


def _line(frame: Frame, top: float, line: Line) -> str:
    """A path, with a gap at each missing value."""
    path: list[str] = []
    last: str | None = None
    for time_s, value in zip(frame.times_s, line.values, strict=True):
        if value is None:
            last = None
            continue
        x, y = f"{frame.x(time_s):.1f}", _y(value, top)
        if last is None:
            path.append(f"M{x} {y}")
        else:
            path.append(f"H{x}" if y == last else f"V{y}H{x}")
        last = y
    return f'<path class="{line.css}" d="{"".join(path)}"/>' if path else ""


def _area(
    frame: Frame, top: float, css: str, below: Sequence[float], above: Sequence[float]
) -> str:
    """The area between two lines, in steps: each value applies since the previous time."""
    points, xs = [], [frame.x(t) for t in frame.times_s]
    for i in range(1, len(xs)):
        points += [f"{xs[i - 1]:.1f},{_y(above[i], top)}", f"{xs[i]:.1f},{_y(above[i], top)}"]
    for i in range(len(xs) - 1, 0, -1):
        points += [f"{xs[i]:.1f},{_y(below[i], top)}", f"{xs[i - 1]:.1f},{_y(below[i], top)}"]
    return f'<polygon class="{css}" points="{" ".join(points)}"/>' if points else ""
