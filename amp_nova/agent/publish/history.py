"""The last ten minutes of a host, for its page: what each instance books and gets, and its chart.

Every ``STEP_S``, a few floats per instance are added: 400 instances take about 1.5 MB.
"""

import html
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from amp_nova.accounting.delivery import CAUSES
from amp_nova.agent.cycle import Cycle
from amp_nova.model.observation import DomainReading

STEP_S = 5.0
SPAN_S = 600.0
WIDTH, HEIGHT = 600, 100
FLOATS = 3 + len(CAUSES)
"""Floats per instance and time (``History.rows``)."""


@dataclass(frozen=True, slots=True)
class History:
    """The instances that are on the host, at the times ``times_s``, the oldest first.

    ``values``: the rows of each instance. One that arrived later has fewer rows than there are
    times. ``short_ref_s``: the accumulated shortfall of each instance at the last time, by cause.
    """

    times_s: tuple[float, ...] = ()
    values: Mapping[str, "array[float]"] = field(default_factory=dict)
    short_ref_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def rows(self, resource: str) -> list[Sequence[float]]:
        """One row per time: what an instance books (0 for best effort) and gets (NaN if that is not
        measured) in reference cores; the seconds since the time before; and by cause the mean
        shortfall in reference cores during these seconds."""
        values = self.values.get(resource, array("f"))
        return [values[at : at + FLOATS] for at in range(0, len(values), FLOATS)]


def advance(before: History, cycle: Cycle, now_s: float) -> History:
    """The history with a cycle added; ``now_s`` is in seconds since the epoch."""
    if before.times_s and before.times_s[-1] > now_s:
        before = History()  # the clock was set back: old times would be in the future
    span_s = now_s - before.times_s[-1] if before.times_s else 0.0
    if before.times_s and span_s < STEP_S * 0.999:
        return before
    recent = [t for t in before.times_s if t >= now_s - SPAN_S - STEP_S]
    times_s = (*recent, now_s)
    values, totals = {}, {}
    for domain in cycle.observation.domains:
        resource = domain.domain.resource
        booked, delivered, total = in_refcores(cycle, domain)
        last_total = before.short_ref_s.get(resource, total)
        short = (max(0.0, a - b) / (span_s or 1.0) for a, b in zip(total, last_total, strict=True))
        row = array("f", (booked, delivered, span_s, *short))
        values[resource] = (before.values.get(resource, array("f")) + row)[-len(times_s) * FLOATS :]
        totals[resource] = total
    return History(times_s, values, totals)


def in_refcores(cycle: Cycle, domain: DomainReading) -> tuple[float, float, tuple[float, ...]]:
    """What an instance books and gets now, and its accumulated shortfall by cause.

    A booking in Ips, and what is delivered of it, count as the reference cores that it is worth.
    """
    booked = delivered = 0.0
    short = (0.0,) * len(CAUSES)
    for vcpu in domain.vcpus:
        key = (domain.domain.resource, vcpu.index)
        entitlement, account = cycle.entitlements[key], cycle.accounts.of(key)
        home, last = entitlement.home, account.last
        worth, got = entitlement.booking.refcores or 0.0, last.refcores
        if entitlement.booking.ips and home.cores is not None and home.core_type is not None:
            worth = home.cores * (cycle.topology.core_type(home.core_type).coefficient or 0.0)
            got = None if last.ips is None else worth * last.ips / entitlement.booking.ips
        booked += worth
        delivered += math.nan if got is None else got
        short = tuple(a + b for a, b in zip(short, account.shortfall_ref_s, strict=True))
    return booked, delivered, short


def chart(says: str, xs: Sequence[float], rows: Sequence[Sequence[float]]) -> str:
    """``History.rows`` as inline SVG; time runs from left to right.

    ``says``: what it shows, for those who do not see it; ``xs``: where each row is, from 0 to 1.
    Shortfall by cause is stacked on what is delivered. The dashed line of what is booked is drawn
    last, so that no other hides it.
    """
    delivered = [r[1] for r in rows]
    booked = [r[0] or math.nan for r in rows]
    areas = [("none", [0.0 if math.isnan(d) else d for d in delivered])]
    for i, cause in enumerate(CAUSES, start=3):
        if any(r[i] for r in rows):
            below = areas[-1][1]
            areas.append((cause, [b + r[i] for b, r in zip(below, rows, strict=True)]))
    top = 1.05 * max((n for n in (*booked, *areas[-1][1]) if n > 0.0), default=1.0)
    # Each area reaches down to 0, and the lower ones are drawn over it.
    at = [f"{WIDTH * x:.0f}" for x in xs]
    down = f"V{HEIGHT}H{at[0]}Z" if at else ""
    drawn = [(css, _steps(at, heights, top) + down) for css, heights in reversed(areas)]
    drawn += [("delivered", _steps(at, delivered, top)), ("booked", _steps(at, booked, top))]
    paths = "".join(f'<path class="{css}" d="{path}"/>' for css, path in drawn)
    return (
        f'<svg role="img" aria-label="{html.escape(says)}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none">{paths}</svg>'
    )


def _steps(xs: Sequence[str], values: Sequence[float], top: float) -> str:
    """A path in steps: each value applies since the time before; NaN leaves a gap."""
    path, last = [], ""
    for x, value in zip(xs, values, strict=True):
        y = "" if math.isnan(value) else f"{HEIGHT * (1.0 - value / top):.0f}"
        if y:
            path.append(f"M{x} {y}" if not last else f"H{x}" if y == last else f"V{y}H{x}")
        last = y
    return "".join(path)
