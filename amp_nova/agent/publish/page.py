"""The agent's page: a host at a glance, as one self-contained HTML document.

It is a plain function of the last cycle and the last ten minutes. The page has no script; the
browser reloads it every few seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from amp_nova.accounting.delivery import CAUSES
from amp_nova.agent.cycle import Cycle, DomainRecord
from amp_nova.agent.publish import capacity, page_cores, page_instances
from amp_nova.agent.publish.charts import Line, figure, lines, text
from amp_nova.agent.publish.history import (
    Changed,
    History,
    in_refcores,
    lost_ref_s,
)
from amp_nova.agent.publish.host_info import HostInfo
from amp_nova.agent.publish.page_instances import complaints, is_booked, label, over
from amp_nova.agent.publish.page_style import STYLE

REFRESH_S = 5
STALE_S = 30.0
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the page may load: nothing (Content-Security-Policy)."""
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
}
"""HTTP headers to serve with the page."""


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


def render(view: View) -> str:
    """The page, as HTML."""
    title = f"amp-nova on {text(view.host)}"
    body = "" if view.cycle is None else _body(view, view.cycle)
    css, verdict = _verdict(view)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>"
        f'<header><h1>{title}</h1><p class="verdict {css}">{text(verdict)}</p></header>{body}'
        f'<footer class="quiet">amp-nova {text(view.version)} · {clock(view.now_s)} UTC · '
        '<a href="/metrics">metrics</a></footer></body></html>\n'
    )


def clock(time_s: float) -> str:
    """The time of day, in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S")


def _verdict(view: View) -> tuple[str, str]:
    """The CSS class of the most important sentence, and the sentence."""
    if view.cycle is None or view.last_success_s is None:
        return "bad", "No control cycle has succeeded yet; the agent's log says why."
    if view.hypervisor_up is False:
        return "bad", f"libvirt does not answer. This is the host at {clock(view.last_success_s)}."
    if view.now_s - view.last_success_s > STALE_S:
        return "bad", f"The last control cycle succeeded at {clock(view.last_success_s)}."
    bad = [d for d in view.cycle.domains if complaints(d)]
    booked = [d for d in view.cycle.domains if is_booked(d)]
    if bad:
        names = ", ".join(label(d) for d in bad[:3])
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        return "bad", f"Not kept as booked: {names}{more}."
    if not booked:
        return "good", "There is no booking on this host."
    return "good", "Every booking is kept." if len(booked) > 1 else "The booking is kept."


def _body(view: View, cycle: Cycle) -> str:
    domains = cycle.domains
    return "".join(
        (
            _host(cycle),
            _tiles(view, cycle, domains),
            _whole(view),
            page_instances.section(view.history.points, view.now_s, domains),
            page_cores.section(cycle, domains),
            _shortfall(view),
            _changes(view.history.changes),
        )
    )


def _host(cycle: Cycle) -> str:
    types = ", ".join(
        f"{len(cycle.topology.pcpus_of(t.name))} {t.name} pCPUs"
        + (f" (coefficient {t.coefficient:g})" if t.coefficient is not None else "")
        for t in reversed(cycle.topology.core_types)
    )
    return f'<p class="quiet">{text(types)} · best-effort policy: {text(cycle.policy)}</p>'


def _tiles(view: View, cycle: Cycle, domains: Sequence[DomainRecord]) -> str:
    lost = sum(lost_ref_s(view.history.points).values())
    booked = sum(is_booked(d) for d in domains)
    refcores = sum(
        in_refcores(cycle, (d.domain.resource, v.reading.index)) for d in domains for v in d.vcpus
    )
    delivered = sum(
        v.account.last.refcores or 0.0
        for d in domains
        for v in d.vcpus
        if v.entitlement.booking.kind != "best_effort"
    )
    tiles = [
        ("Booked", figure(refcores), "refcores", "all bookings"),
        ("Delivered", figure(delivered), "refcores", "to bookings"),
        ("Not delivered", figure(lost), "refcore s", "though in demand, in 10 min"),
        (
            "Instances",
            str(len(domains)),
            "",
            f"{booked} booked, {len(domains) - booked} best effort",
        ),
    ]
    if view.admits is not None:
        left = capacity.headroom_refcores(cycle, view.admits)
        parts = ", ".join(f"{figure(left[name])} {name}" for name in reversed([*left]))
        tiles.append(("Can be booked", figure(sum(left.values())), "refcores", parts or "-"))
    shown = "".join(
        f'<div class="card">{name}<b>{value} <small>{unit}</small></b>'
        f'<span class="quiet">{text(more)}</span></div>'
        for name, value, unit, more in tiles
    )
    return f'<section class="tiles">{shown}</section>'


def _whole(view: View) -> str:
    points = view.history.points
    if not points:
        return ""
    booked = Line("booked", [p.booked_refcores or None for p in points])
    delivered = Line(
        "delivered", [p.delivered_refcores if p.booked_refcores else None for p in points]
    )
    short = [sum(p.short) for p in points]
    says = (
        f"All bookings over ten minutes: {figure(points[-1].booked_refcores)} reference cores are "
        f"booked, {figure(points[-1].delivered_refcores)} delivered now"
    )
    areas = [Line("none", delivered.values), Line("short", short)]
    chart = lines(over(points, view.now_s, says, "refcores"), [delivered, booked], areas)
    return (
        f'<section class="wide"><h2>All bookings together</h2><div class="card">{_key(KEY)}{chart}'
        "</div></section>"
    )


KEY = (
    ("booked", '<path class="booked" d="M0 5H24"/>'),
    ("delivered", '<path class="delivered" d="M0 5H24"/>'),
    ("in demand, but not delivered", '<rect class="short" width="24" height="10"/>'),
)


def _key(marks: Sequence[tuple[str, str]]) -> str:
    """The key of a chart; ``marks``: pairs of words and the mark that is drawn beside them."""
    shown = "".join(
        f'<span><svg viewBox="0 0 24 10" aria-hidden="true">{drawn}</svg>{text(words)}</span>'
        for words, drawn in marks
    )
    return f'<div class="key quiet">{shown}</div>'


def _shortfall(view: View) -> str:
    """The section that shows shortfall over time, stacked by cause."""
    points = view.history.points
    by_cause = [[p.short[i] for p in points] for i in range(len(CAUSES))]
    head = '<section class="wide"><h2>Not delivered, by cause</h2>'
    present = [i for i, values in enumerate(by_cause) if any(values)]
    if not present:
        return (
            f'{head}<p class="quiet">In the last ten minutes, all booked capacity that was in '
            "demand was delivered.</p></section>"
        )
    names = [CAUSES[i].replace("_", " ") for i in present]
    frame = over(points, view.now_s, f"Not delivered, by cause: {', '.join(names)}", "refcores")
    chart = lines(frame, [], [Line(CAUSES[i], by_cause[i]) for i in present])
    marks = [
        (name, f'<rect class="{CAUSES[i]}" width="24" height="10"/>')
        for i, name in zip(present, names, strict=True)
    ]
    return f'{head}<div class="card">{_key(marks)}{chart}</div></section>'


def _changes(changes: Sequence[Changed]) -> str:
    if not changes:
        return (
            '<section><h2>Recent changes</h2><p class="quiet">None since the agent started.</p>'
            "</section>"
        )
    rows = "".join(map(_change, changes))
    return (
        '<section><h2>Recent changes</h2><div class="card"><table class="changes"><thead><tr>'
        "<th>Time</th><th>Who</th><th>Change</th><th>Reason</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _change(change: Changed) -> str:
    times = f' <span class="quiet">({change.count} times)</span>' if change.count > 1 else ""
    failed = f'<p class="bad">Failed: {text(change.failure)}</p>' if change.failure else ""
    return (
        f'<tr><td class="quiet">{clock(change.time_s)}</td><td>{text(change.who)}</td>'
        f"<td>{text(change.what)}{times}</td><td>{text(change.why)}{failed}</td></tr>"
    )
