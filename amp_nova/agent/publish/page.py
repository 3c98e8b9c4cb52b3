"""The agent's page: a host at a glance, as one self-contained HTML document.

It is a plain function of the last cycle and the last ten minutes. The page has no script; the
browser reloads it every few seconds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from amp_nova.accounting.delivery import CAUSES
from amp_nova.agent.cycle import Cycle, DomainRecord, VcpuRecord
from amp_nova.agent.publish import capacity, history
from amp_nova.agent.publish.charts import chart, figure, text
from amp_nova.agent.publish.history import FLOATS, SPAN_S, History
from amp_nova.agent.publish.host_info import HostInfo
from amp_nova.agent.publish.page_style import STYLE
from amp_nova.model import cpulist
from amp_nova.model.topology import PCpu

REFRESH_S = 5
STALE_S = 30.0
SHORT_RATIO = 0.95
"""Below this, a booking is reported as not delivered."""
NAMED_MAX = 5
"""Number of instances that the banner names."""
WORDS = dict(
    zip(
        CAUSES,
        ("limit too low", "other threads ran", "core type too slow", "low clock", "busy sibling"),
        strict=True,
    )
)


@dataclass(frozen=True, slots=True)
class View:
    """What the page shows, at ``now_s`` in seconds since the epoch.

    ``cycle`` is ``None`` until one has succeeded; ``admits``: what may be booked on this host.
    """

    host: str
    version: str
    now_s: float
    cycle: Cycle | None = None
    history: History = field(default_factory=History)
    last_success_s: float | None = None
    hypervisor_up: bool | None = None
    admits: HostInfo | None = None


@dataclass(frozen=True)
class Instance:
    """An instance: what it books and gets now in reference cores, and in the last ten minutes.

    ``rows``: as in ``History.rows``; ``lost_ref_s``: what it did not get then, by cause;
    ``complaints``: what is wrong with it, in sentences without a full stop.
    """

    record: DomainRecord
    booked: float
    delivered: float
    rows: Sequence[Sequence[float]]
    lost_ref_s: Sequence[float]
    complaints: Sequence[str]

    @property
    def name(self) -> str:
        """The name shown for it."""
        return self.record.domain.display_name or self.record.domain.name

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
        got = self.delivered * scale
        known = "?" if math.isnan(got) else figure(got)
        if not self.is_booked:
            return "best effort" if known == "?" else f"{known} {unit}, best effort"
        ratios = [r for v in self.record.vcpus if (r := v.account.last.ratio) is not None]
        content = got < SHORT_RATIO * amount and ratios and min(ratios) >= SHORT_RATIO
        return f"{known} of {figure(amount)} {unit}{', all it wanted' if content else ''}"


def _instances(cycle: Cycle, past: History) -> list[Instance]:
    """Every instance, the worst first."""
    found = []
    for record, reading in zip(cycle.domains, cycle.observation.domains, strict=True):
        booked, delivered, _ = history.in_refcores(cycle, reading)
        rows = past.rows(record.domain.resource)
        lost = [sum(r[2] * r[i] for r in rows) for i in range(3, FLOATS)]
        found.append(Instance(record, booked, delivered, rows, lost, _complaints(record)))
    found.sort(key=lambda i: (not i.complaints, -round(sum(i.lost_ref_s), 1), i.name))
    return found


def _complaints(record: DomainRecord) -> list[str]:
    by_reason: dict[str, list[int]] = defaultdict(list)
    for vcpu in record.vcpus:
        ratio, index = vcpu.account.last.ratio, vcpu.reading.index
        if capacity.unenforced(vcpu):
            by_reason[vcpu.failure or vcpu.entitlement.note or ""].append(index)
        elif ratio is not None and ratio < SHORT_RATIO:
            by_reason[f"gets {ratio:.0%} of the booked capacity that it wants"].append(index)
    found = [record.problem] if record.problem else []
    return [*found, *(f"vCPU {cpulist.show(i)}: {why}" for why, i in by_reason.items())]


def render(view: View) -> str:
    """The page, as HTML."""
    instances = _instances(view.cycle, view.history) if view.cycle else []
    title = f"amp-nova on {text(view.host)}"
    body = _body(view, view.cycle, instances) if view.cycle else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"{_banner(view, instances)}{body}"
        f'<footer class="quiet">amp-nova {text(view.version)} · {clock(view.now_s)} UTC · '
        '<a href="/metrics">metrics</a></footer></body></html>\n'
    )


def clock(time_s: float) -> str:
    """The time of day, in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S")


def _banner(view: View, instances: Sequence[Instance]) -> str:
    """The verdict; then which instances are short and why."""
    short = [i for i in instances if i.complaints]
    booked, more = sum(i.is_booked for i in instances), ""
    if view.cycle is None or view.last_success_s is None:
        said = "No control cycle has succeeded yet; the agent's log says why."
    elif view.hypervisor_up is False:
        said = f"libvirt does not answer. This is the host at {clock(view.last_success_s)}."
    elif view.now_s - view.last_success_s > STALE_S:
        said = f"The last control cycle succeeded at {clock(view.last_success_s)}."
    elif short:
        said = f"Bookings of {len(short)} of {booked} instances are not kept."
        for instance in short[:NAMED_MAX]:
            why = f"; lost mostly to {_words(instance.main_cause)}" if instance.main_cause else ""
            more += f"<li><b>{text(instance.name)}</b>: {text(instance.complaints[0] + why)}.</li>"
        more += f"<li>and {len(short) - NAMED_MAX} more</li>" if len(short) > NAMED_MAX else ""
    else:
        said = "All bookings are kept." if booked else "There is no booking on this host."
        return f'<div class="banner good"><b>✓ {said}</b></div>'
    return f'<div class="banner bad"><b>✗ {said}</b><ul>{more}</ul></div>'


def _body(view: View, cycle: Cycle, instances: Sequence[Instance]) -> str:
    times_s = view.history.times_s
    # While the history is short, it fills the charts.
    span_s = min(SPAN_S, max(60.0, view.now_s - times_s[0])) if times_s else SPAN_S
    xs = [max(0.0, 1.0 - (view.now_s - t) / span_s) for t in times_s]
    past = f"last {span_s / 60.0:.0f} min"
    rows = "".join(_row(i, xs[len(xs) - len(i.rows) :]) for i in instances)
    heads = ("Instance", past.capitalize(), "Delivered now", "Not delivered", "Cores")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return (
        f"{_tiles(view, cycle, instances, past)}{_together(instances, xs, past)}"
        '<h2>Instances, worst first</h2><section class="card"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"
        f"<h2>Cores, and who runs on them</h2>{_cores(cycle, instances)}"
        f'<p class="quiet">Best-effort policy: {text(cycle.policy)}</p>'
    )


def _tiles(view: View, cycle: Cycle, instances: Sequence[Instance], past: str) -> str:
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
        whole = capacity.headroom_refcores(replace(cycle, entitlements={}), view.admits)
        left = capacity.headroom_refcores(cycle, view.admits)
        parts = ", ".join(f"{figure(left[name])} {name}" for name in reversed([*left]))
        tiles.append(("Booked", refcores, sum(whole.values()), f"refcores; left: {parts or '-'}"))
    shown = (
        f'<div class="card">{name}<b>{figure(part)} of {figure(total)}</b>'
        f'<span class="quiet">{text(unit)}</span></div>'
        for name, part, total, unit in tiles
    )
    return f'<section class="tiles">{"".join(shown)}</section>'


def _together(instances: Sequence[Instance], xs: Sequence[float], past: str) -> str:
    """The chart of all bookings, and what its colours mean."""
    totals: list[Sequence[float]] = []
    for at in range(-len(xs), 0):
        rows = [i.rows[at] for i in instances if len(i.rows) >= -at]
        measured = [r for r in rows if r[0] and not math.isnan(r[1])]
        totals.append([sum(column) for column in zip(*measured, strict=True)])
    if not any(totals):
        return ""
    marks = {"booked": "booked", "delivered": "delivered"}
    for i, cause in enumerate(CAUSES, start=3):
        if any(t[i] for t in totals if t):
            marks[cause] = f"not delivered: {_words(cause)}"
    key = "".join(f'<span><i class="{css}"></i>{said}</span>' for css, said in marks.items())
    svg, top = chart(f"All bookings, {past}", xs, totals)
    return (
        f'<h2>All bookings, {past}</h2><section class="card"><p class="key">{key}</p>'
        f'<p class="quiet">0 to {figure(top)} refcores</p>{svg}</section>'
    )


def _words(cause: str) -> str:
    return f"{cause.replace('_', ' ')} ({WORDS[cause]})"


def _row(instance: Instance, xs: Sequence[float]) -> str:
    record, cause, short = instance.record, instance.main_cause, ""
    wrong = "".join(f'<p class="bad">✗ {text(c)}.</p>' for c in instance.complaints)
    svg, _ = chart(f"{instance.name}: {instance.summary}", xs, instance.rows)
    if cause:
        lost = figure(sum(instance.lost_ref_s))
        short = f'<i class="{cause}"></i>{lost} refcore s, mostly {_words(cause)}'
    types = Counter(v.entitlement.core_type or "any core type" for v in record.vcpus)
    where = ", ".join(f"{n} on {name}" for name, n in types.items())
    return (
        f"<tr><td><b>{text(instance.name)}</b> "
        f'<span class="quiet">{text(record.domain.flavor)}</span>{wrong}</td><td>{svg}</td>'
        f"<td>{text(instance.summary)}</td><td>{short}</td><td>{text(where)}</td></tr>"
    )


def _cores(cycle: Cycle, instances: Sequence[Instance]) -> str:
    """Every online pCPU, the fastest core type first, and who runs on it."""
    on: dict[int | None, list[VcpuRecord]] = defaultdict(list)
    names: dict[int | None, list[str]] = defaultdict(list)
    for instance in instances:
        for vcpu in instance.record.vcpus:
            home, places = vcpu.entitlement.home, vcpu.reading.pcpus
            place = next((p for p in (vcpu.reading.last_pcpu, home.pcpu) if p in places), None)
            share = "best effort" if home.cores is None else f"{home.cores:.0%}"
            on[place].append(vcpu)
            names[place].append(text(f"{instance.name}/{vcpu.reading.index} {share}"))
    parts = []
    for core_type in reversed(cycle.topology.core_types):
        pcpus = [p for p in cycle.topology.pcpus if p.core_type == core_type.name]
        coefficient = core_type.coefficient
        said = "" if coefficient is None else f", coefficient {coefficient:g}"
        parts.append(f"<p><b>{text(core_type.name)}</b>, {len(pcpus)} pCPUs{said}</p>")
        parts.append(f'<p class="quiet">{_why_shared(pcpus, on)}</p><div class="pcpus">')
        for pcpu in pcpus:
            others = cpulist.show(s for s in pcpu.siblings if s != pcpu.id)
            sibling = f' <span class="quiet">sibling {others}</span>' if others else ""
            said = "<br>".join(names[pcpu.id]) or '<span class="quiet">free</span>'
            parts.append(f'<div class="card"><b>{pcpu.id}</b>{sibling}<br>{said}</div>')
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
