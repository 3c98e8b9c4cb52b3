"""Charts of capacity over time as inline SVG, without a script; time runs from left to right.

A chart stretches with the page, but the width of its lines does not change. Colours are classes
that the page's style sheet defines.
"""

import html
import math
from collections.abc import Sequence

from amp_nova.accounting.delivery import CAUSES

WIDTH, HEIGHT = 600, 100


def text(value: str) -> str:
    """Text, escaped for HTML."""
    return html.escape(value, quote=True)


def figure(number: float) -> str:
    """A number in at most three significant digits, with a prefix above 10,000."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if prefix == 'k' else size):.3g} {prefix}"
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"


def chart(says: str, xs: Sequence[float], rows: Sequence[Sequence[float]]) -> tuple[str, float]:
    """A chart of ``rows`` (``History.rows``), and the value at its top; empty rows leave gaps.

    ``says``: what it shows, for those who do not see it; ``xs``: where each row is, from 0 to 1.
    Shortfall by cause is stacked on what is delivered. The dashed line of what is booked is drawn
    last, so that no other hides it.
    """
    delivered = [r[1] if r else math.nan for r in rows]
    booked = [r[0] if r and r[0] else math.nan for r in rows]
    areas = [("none", [0.0 if math.isnan(d) else d for d in delivered])]
    for i, cause in enumerate(CAUSES, start=3):
        if any(r[i] for r in rows if r):
            below = areas[-1][1]
            areas.append(
                (cause, [b + (r[i] if r else 0.0) for b, r in zip(below, rows, strict=True)])
            )
    top = 1.05 * max((n for n in (*booked, *areas[-1][1]) if n > 0.0), default=1.0)
    # Each area reaches down to 0, and the lower ones are drawn over it.
    at = [f"{WIDTH * x:.0f}" for x in xs]
    down = f"V{HEIGHT}H{at[0]}Z" if at else ""
    drawn = [(css, _steps(at, heights, top) + down) for css, heights in reversed(areas)]
    drawn += [("delivered", _steps(at, delivered, top)), ("booked", _steps(at, booked, top))]
    paths = "".join(f'<path class="{css}" d="{path}"/>' for css, path in drawn)
    return (
        f'<svg role="img" aria-label="{text(says)}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none">{paths}</svg>'
    ), top


def _steps(xs: Sequence[str], values: Sequence[float], top: float) -> str:
    """A path in steps: each value applies since the time before; NaN leaves a gap."""
    path, last = [], ""
    for x, value in zip(xs, values, strict=True):
        y = "" if math.isnan(value) else f"{HEIGHT * (1.0 - value / top):.0f}"
        if y:
            path.append(f"M{x} {y}" if not last else f"H{x}" if y == last else f"V{y}H{x}")
        last = y
    return "".join(path)
