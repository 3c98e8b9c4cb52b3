"""The part of the agent's page that shows what each instance books and gets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from amp_nova.agent.cycle import DomainRecord, VcpuRecord
from amp_nova.agent.publish import capacity
from amp_nova.agent.publish.charts import Frame, Line, figure, lines, text
from amp_nova.agent.publish.history import SPAN_S, Point, Shown, lost_ref_s, series
from amp_nova.model import cpulist

CARDS_MAX = 24
"""Number of instances that are shown with a chart; the others are listed in a table."""
UNKNOWN = '<p class="quiet">What it gets is not measured: it may run on several core types.</p>'
SPANS_S = (60.0, 120.0, 300.0)
SHORT_RATIO = 0.95
"""Below this, a booking is reported as not delivered."""


def label(record: DomainRecord) -> str:
    """The name shown for an instance."""
    return record.domain.display_name or record.domain.name


def is_booked(record: DomainRecord) -> bool:
    """Whether any vCPU has a booking."""
    return any(v.entitlement.booking.kind != "best_effort" for v in record.vcpus)


def complaints(record: DomainRecord) -> list[str]:
    """What is wrong with an instance, in sentences without a full stop."""
    by_reason: dict[str, list[int]] = {}
    for vcpu in record.vcpus:
        ratio, reason = vcpu.account.last.ratio, ""
        if capacity.unenforced(vcpu):
            reason = vcpu.failure or vcpu.entitlement.note or ""
        elif ratio is not None and ratio < SHORT_RATIO:
            reason = f"gets {ratio:.0%} of its booking"
        if reason:
            by_reason.setdefault(reason, []).append(vcpu.reading.index)
    found = [record.problem] if record.problem else []
    return [*found, *(f"vCPU {cpulist.show(i)}: {reason}" for reason, i in by_reason.items())]


def over(points: Sequence[Point], now_s: float, says: str, unit: str = "") -> Frame:
    """The frame of a chart over the last ten minutes, or less while the history is shorter."""
    times_s = [p.time_s for p in points]
    # While the history is short, the shortest of SPANS_S that covers it.
    known_s = now_s - times_s[0] if times_s else 0.0
    span_s = next((s for s in SPANS_S if s >= known_s), SPAN_S)
    return Frame(says, times_s, now_s, span_s, unit)


def section(points: Sequence[Point], now_s: float, domains: Sequence[DomainRecord]) -> str:
    """The section that shows every instance; those that lack booked capacity come first."""
    if not domains:
        return '<section><h2>Instances</h2><p class="quiet">There are none.</p></section>'
    lost = lost_ref_s(points)
    ordered = sorted(
        domains,
        key=lambda d: (not complaints(d), -round(lost.get(d.domain.resource, 0.0), 1), label(d)),
    )
    first, others = ordered[:CARDS_MAX], ordered[CARDS_MAX:]
    shown = series(points, {d.domain.resource for d in first})
    cards = "".join(_card(over(points, now_s, ""), d, shown[d.domain.resource]) for d in first)
    more = ""
    if others:
        more = (
            f"<details><summary>{len(others)} more instances</summary>{_table(others, lost)}"
            "</details>"
        )
    return f'<section><h2>Instances</h2><div class="cards">{cards}</div>{more}</section>'


def _unit(record: DomainRecord) -> str:
    return "Ips" if any(v.entitlement.booking.ips for v in record.vcpus) else "refcores"


def _said(record: DomainRecord) -> str:
    """What is delivered and booked, in words, summed over the vCPUs of an instance."""
    bookings, unit = [v.entitlement.booking for v in record.vcpus], _unit(record)
    windows = [v.account.last for v in record.vcpus]
    got = [w.ips if unit == "Ips" else w.refcores for w in windows]
    delivered = "?" if None in got else figure(sum(g or 0.0 for g in got))
    if not is_booked(record):
        return "best effort" if delivered == "?" else f"{delivered} {unit}, best effort"
    booked = sum((b.ips if unit == "Ips" else b.refcores) or 0.0 for b in bookings)
    ratios = [w.ratio for w in windows if w.ratio is not None]
    less = sum(g or 0.0 for g in got) < SHORT_RATIO * booked
    content = less and ratios and min(ratios) >= SHORT_RATIO
    return f"{delivered} of {figure(booked)} {unit}{', all it wanted' if content else ''}"


def _where(vcpus: Sequence[VcpuRecord]) -> str:
    """The core types that its vCPUs are placed on, with the number of vCPUs on each."""
    count: dict[str, int] = {}
    for vcpu in vcpus:
        name = vcpu.entitlement.core_type or "any core type"
        count[name] = count.get(name, 0) + 1
    several = len(count) > 1
    return ", ".join(f"{n} on {name}" if several else f"on {name}" for name, n in count.items())


def _card(frame: Frame, record: DomainRecord, shown: Sequence[Shown | None]) -> str:
    wrong = complaints(record)
    booked = [s.booked if s and is_booked(record) else None for s in shown]
    delivered = [s.delivered if s else None for s in shown]
    drawn = [Line("delivered", delivered), Line("booked", booked)]
    areas: list[Line] = []
    unit = _unit(record)
    if unit == "refcores":
        short = [sum(s.short) if s else None for s in shown]
        areas = [Line("none", delivered), Line("short", short)]
    known = any(value is not None for value in delivered)
    chart = lines(replace(frame, says=f"{label(record)}: {_said(record)}", unit=unit), drawn, areas)
    said = "".join(f'<p class="bad">{text(sentence)}.</p>' for sentence in wrong)
    return (
        f'<article class="card{" bad" if wrong else ""}"><div class="pair">'
        f'<h3>{text(label(record))}</h3><span class="quiet">{text(record.domain.flavor)}</span>'
        f'</div><div class="pair"><b>{text(_said(record))}</b>'
        f'<span class="quiet">{text(_where(record.vcpus))}</span></div>{said}'
        f"{chart if known else UNKNOWN}</article>"
    )


def _table(records: Sequence[DomainRecord], lost: Mapping[str, float]) -> str:
    rows = "".join(
        f"<tr><td>{text(label(d))}</td><td>{text(_said(d))}</td>"
        f"<td>{text(_where(d.vcpus))}</td>"
        f'<td class="n">{figure(lost.get(d.domain.resource, 0.0))}</td></tr>'
        for d in records
    )
    return (
        '<div class="scroll"><table><thead><tr><th>Instance</th><th>Delivered</th><th>Cores</th>'
        f'<th class="n">Not delivered, refcore s</th></tr></thead><tbody>{rows}</tbody></table>'
        "</div>"
    )
