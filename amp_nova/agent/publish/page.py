# SPDX-License-Identifier: Apache-2.0
"""The agent's page: a host at a glance, as one self-contained HTML document.

It is a plain function of the last cycle and the last ten minutes, and has no script.
"""

import math
import platform
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version

from amp_nova.accounting.delivery import CAUSES, KEPT_RATIO
from amp_nova.agent.cycle import Cycle, DomainRecord, VcpuRecord
from amp_nova.agent.publish import host_info
from amp_nova.agent.publish.host_info import AgentStatus, HostInfo
from amp_nova.agent.publish.page_style import STYLE
from amp_nova.agent.publish.snapshot import FLOATS, SPAN_S, History, in_refcores
from amp_nova.model import cpulist
from amp_nova.model.topology import PCpu

WIDTH, HEIGHT = 600, 100
"""Of a chart, in units of its SVG."""
STALE_S = 30.0
NAMED_MAX = 5  # instances in the banner
WORDS = {
    "throttle": "throttle (limit too low)",
    "contention": "contention (other threads ran)",
    "core_type": "core type (too slow)",
    "frequency": "frequency (low clock)",
    "smt": "SMT (busy sibling)",
}


@dataclass(frozen=True, slots=True)
class View:
    """What the page shows, at ``now_s`` in seconds since the epoch.

    ``cycle`` is ``None`` until one has succeeded; ``admits``: what may be booked on this host.
    """

    agent: AgentStatus
    now_s: float
    cycle: Cycle | None = None
    history: History = field(default_factory=History)
    admits: HostInfo | None = None


@dataclass(frozen=True)
class InstanceRow:
    """An instance: what it books and gets now in reference cores, and in the last ten minutes.

    ``rows``: as in ``History.rows``; ``lost_ref_s``: what it did not get then, by cause;
    ``complaints``: what is wrong with it, in sentences without a full stop.
    """

    name: str
    record: DomainRecord
    booked: float
    delivered: float
    rows: Sequence[Sequence[float]]
    lost_ref_s: Sequence[float]
    complaints: Sequence[str]

    @property
    def is_booked(self) -> bool:
        """Whether any vCPU has a booking."""
        return any(v.entitlement.booking.kind != "best_effort" for v in self.record.vcpus)

    @property
    def main_cause(self) -> str:
        """The cause of most of what it did not get; empty if there is hardly anything."""
        lost, cause = max(zip(self.lost_ref_s, CAUSES, strict=True))
        return cause if lost > 0.01 else ""

    @property
    def summary(self) -> str:
        """What is delivered and booked, in words, in the unit of the booking."""
        ips = sum(v.entitlement.booking.ips or 0.0 for v in self.record.vcpus)
        unit, amount = ("Ips", ips) if ips else ("refcores", self.booked)
        scale = amount / self.booked if self.booked else math.nan if ips else 1.0
        delivered = self.delivered * scale
        now = "?" if math.isnan(delivered) else figure(delivered)
        if not self.is_booked:
            return "best effort" if now == "?" else f"{now} {unit}, best effort"
        ratios = [r for v in self.record.vcpus if (r := v.account.last.ratio) is not None]
        content = delivered < KEPT_RATIO * amount and ratios and min(ratios) >= KEPT_RATIO
        return f"{now} of {figure(amount)} {unit}{', all it wanted' if content else ''}"


def _instances(cycle: Cycle, past: History) -> list[InstanceRow]:
    """Every instance, the worst first."""
    rows = []
    for record, reading in zip(cycle.domains, cycle.observation.domains, strict=True):
        booked, delivered, _ = in_refcores(cycle, reading)
        name = record.domain.display_name or record.domain.name
        series = past.rows(record.domain.resource)
        lost = [sum(r[2] * r[i] for r in series) for i in range(3, FLOATS)]
        why = _complaints(record)
        rows.append(InstanceRow(name, record, booked, delivered, series, lost, why))
    return sorted(rows, key=lambda r: (not r.complaints, -round(sum(r.lost_ref_s), 1), r.name))


def _complaints(record: DomainRecord) -> list[str]:
    by_reason: dict[str, list[int]] = defaultdict(list)
    for vcpu in record.vcpus:
        ratio, index = vcpu.account.last.ratio, vcpu.reading.index
        if host_info.unenforced(vcpu):
            by_reason[vcpu.failure or vcpu.entitlement.note or ""].append(index)
        elif ratio is not None and ratio < KEPT_RATIO:
            by_reason[f"gets {ratio:.0%} of the booked capacity that it wants"].append(index)
    of_vcpus = (f"vCPU {cpulist.show(i)}: {why}" for why, i in by_reason.items())
    return [*([record.problem] if record.problem else []), *of_vcpus]


def render(view: View) -> str:
    """The page, as HTML."""
    instances = _instances(view.cycle, view.history) if view.cycle else []
    host = (view.admits.node if view.admits else "") or platform.node()
    title = f"amp-nova on {escape(host)}"
    body = _body(view, view.cycle, instances) if view.cycle else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="refresh" content="5">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"{_banner(view, instances)}{body}"
        f'<footer class="quiet">amp-nova {version("amp-nova")} · {clock(view.now_s)} UTC · '
        '<a href="/metrics">metrics</a></footer></body></html>\n'
    )


def figure(number: float) -> str:
    """A number in at most three significant digits, with a prefix above 10,000."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if prefix == 'k' else size):.3g} {prefix}"
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"


def clock(time_s: float) -> str:
    """The time of day, in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S")


def _banner(view: View, instances: Sequence[InstanceRow]) -> str:
    """The verdict; then which instances are short and why, and what is wrong with the host."""
    short = [i for i in instances if i.complaints]
    booked, more, css, sign = sum(i.is_booked for i in instances), "", "bad", "✗"
    agent, succeeded_s = view.agent, view.agent.last_success_s
    if view.cycle is None or succeeded_s is None:
        verdict = "No control cycle has succeeded yet; the agent's log says why."
    elif agent.hypervisor_up is False:
        verdict = f"libvirt does not answer. This is the host at {clock(succeeded_s)}."
    elif view.now_s - succeeded_s > STALE_S:
        verdict = f"The last control cycle succeeded at {clock(succeeded_s)}."
    elif view.cycle.outcome.observing:
        verdict = "No booking is enforced."
    elif short:
        verdict = f"Bookings of {len(short)} of {booked} instances are not kept."
        for i in short[:NAMED_MAX]:
            why = f"; lost mostly to {WORDS[i.main_cause]}" if i.main_cause else ""
            more += f"<li><b>{escape(i.name)}</b>: {escape(i.complaints[0] + why)}.</li>"
        more += f"<li>and {len(short) - NAMED_MAX} more</li>" if len(short) > NAMED_MAX else ""
    else:
        verdict = "All bookings are kept." if booked else "There is no booking on this host."
        css, sign = "good", "✓"
    sentences = [warning.sentence for warning in agent.warnings]
    more += "".join(f"<li>{escape(s[:1].upper() + s[1:])}.</li>" for s in sentences)
    more = more and f"<ul>{more}</ul>"
    return f'<div class="banner {css}"><b>{sign} {verdict}</b>{more}</div>'


def _body(view: View, cycle: Cycle, instances: Sequence[InstanceRow]) -> str:
    times_s = view.history.times_s
    # While the history is short, it fills the charts.
    span_s = min(SPAN_S, max(60.0, view.now_s - times_s[0])) if times_s else SPAN_S
    xs = [max(0.0, 1.0 - (view.now_s - t) / span_s) for t in times_s]
    past = f"last {span_s / 60.0:.0f} min"
    marks = {"booked": "booked", "delivered": "delivered"}
    for i, cause in enumerate(CAUSES):
        if any(instance.lost_ref_s[i] for instance in instances):
            marks[cause] = f"not delivered: {WORDS[cause]}"
    key = "".join(f'<span><i class="{css}"></i>{text}</span>' for css, text in marks.items())
    rows = "".join(_row(i, xs[len(xs) - len(i.rows) :]) for i in instances)
    titles = ("Instance", past.capitalize(), "Delivered now", "Not delivered", "Cores")
    head = "".join(f"<th>{title}</th>" for title in titles)
    return (
        f"{_tiles(view, cycle, instances, past)}<h2>Instances, worst first</h2>"
        f'<p class="key">{key}</p><section class="card"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"
        f"<h2>Cores, and who runs on them</h2>{_cores(cycle, instances)}"
        f'<p class="quiet">Best-effort policy: {escape(cycle.policy)}</p>'
    )


def _tiles(view: View, cycle: Cycle, instances: Sequence[InstanceRow], past: str) -> str:
    """A few figures, each with what it is a part of."""
    booked = [i for i in instances if i.is_booked]
    short = sum(bool(i.complaints) for i in booked)
    refcores = sum(i.booked for i in booked)
    delivered = sum(i.delivered for i in booked if not math.isnan(i.delivered))
    lost = sum(sum(i.lost_ref_s) for i in booked)
    owed = sum(r[0] * r[2] for i in booked for r in i.rows)
    effort = len(instances) - len(booked)
    tiles = [
        ("Short", short, len(booked), f"booked instances, and {effort} best effort"),
        ("Delivered now", delivered, refcores, "refcores booked; guests may want less"),
        ("Not delivered", lost, owed, f"refcore s booked, {past}"),
    ]
    if view.admits is not None:
        whole = host_info.headroom_refcores(replace(cycle, entitlements={}), view.admits)
        left = host_info.headroom_refcores(cycle, view.admits)
        parts = ", ".join(f"{figure(left[name])} {name}" for name in reversed([*left]))
        tiles.append(("Booked", refcores, sum(whole.values()), f"refcores; left: {parts or '-'}"))
    cards = (
        f'<div class="card">{name}<b>{figure(part)} of {figure(total)}</b>'
        f'<span class="quiet">{escape(unit)}</span></div>'
        for name, part, total, unit in tiles
    )
    return f'<section class="tiles">{"".join(cards)}</section>'


def _row(instance: InstanceRow, xs: Sequence[float]) -> str:
    record, cause = instance.record, instance.main_cause
    short = "none measured" if instance.complaints else ""
    wrong = "".join(f'<p class="bad">✗ {escape(c)}.</p>' for c in instance.complaints)
    svg = chart(f"{instance.name}: {instance.summary}", xs, instance.rows)
    if cause:
        lost = figure(sum(instance.lost_ref_s))
        short = f'<i class="{cause}"></i>{lost} refcore s, mostly {WORDS[cause]}'
    types = Counter(v.entitlement.core_type or "any core type" for v in record.vcpus)
    where = ", ".join(f"{n} on {name}" for name, n in types.items())
    return (
        f"<tr><td><b>{escape(instance.name)}</b> "
        f'<span class="quiet">{escape(record.domain.flavor)}</span>{wrong}</td><td>{svg}</td>'
        f"<td>{escape(instance.summary)}</td><td>{short}</td><td>{escape(where)}</td></tr>"
    )


def _cores(cycle: Cycle, instances: Sequence[InstanceRow]) -> str:
    """Every online pCPU, the fastest core type first, and who runs on it."""
    on: dict[int | None, list[VcpuRecord]] = defaultdict(list)
    names: dict[int | None, list[str]] = defaultdict(list)
    for instance in instances:
        for vcpu in instance.record.vcpus:
            home, places = vcpu.entitlement.home, vcpu.reading.pcpus
            place = next((p for p in (vcpu.reading.last_pcpu, home.pcpu) if p in places), None)
            share = "best effort" if home.cores is None else f"{home.cores:.0%}"
            on[place].append(vcpu)
            names[place].append(escape(f"{instance.name}/{vcpu.reading.index} {share}"))
    parts = []
    for core_type in reversed(cycle.topology.core_types):
        pcpus = [p for p in cycle.topology.pcpus if p.core_type == core_type.name]
        coefficient = core_type.coefficient
        speed = "" if coefficient is None else f", coefficient {coefficient:g}"
        parts.append(f"<p><b>{escape(core_type.name)}</b>, {len(pcpus)} pCPUs{speed}</p>")
        parts.append(f'<p class="quiet">{_why_shared(pcpus, on)}</p><div class="pcpus">')
        for pcpu in pcpus:
            others = cpulist.show(s for s in pcpu.siblings if s != pcpu.id)
            sibling = f' <span class="quiet">sibling {others}</span>' if others else ""
            vcpus = "<br>".join(names[pcpu.id]) or '<span class="quiet">free</span>'
            parts.append(f'<div class="card"><b>{pcpu.id}</b>{sibling}<br>{vcpus}</div>')
        parts.append("</div>")
    anywhere = ", ".join(names[None])
    return "".join(parts) + (f"<p>On several pCPUs: {anywhere}</p>" if anywhere else "")


def _why_shared(pcpus: Sequence[PCpu], on: Mapping[int | None, Sequence[VcpuRecord]]) -> str:
    """Why bookings share a pCPU while a core of the same type is free, if they do."""
    booked = {p.id: [v for v in on[p.id] if v.entitlement.home.cores] for p in pcpus}
    shared = {pcpu: vcpus for pcpu, vcpus in booked.items() if len(vcpus) > 1}
    free = [p.id for p in pcpus if not any(on[s] for s in (p.id, *p.siblings))]
    if not shared or not free:
        return ""
    why = "they may use every pCPU of this type, and the kernel put them there"
    if all(len(v.reading.pcpus) == 1 for vcpus in shared.values() for v in vcpus):
        why = "bookings fill one pCPU before the next, to keep whole pCPUs for larger bookings"
    return f"Bookings share pCPU {cpulist.show(shared)} while {cpulist.show(free)} is free: {why}."


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
        f'<svg role="img" aria-label="{escape(says)}" viewBox="0 0 {WIDTH} {HEIGHT}" '
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
