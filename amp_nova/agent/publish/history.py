"""The last ten minutes of a host, for its page: capacity by instance, and recent changes.

Every ``STEP_S``, a point with a few floats per instance is added: 400 instances take about 1.3 MB.
"""

import math
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise

from amp_nova.accounting.delivery import CAUSES
from amp_nova.agent.cycle import Cycle
from amp_nova.model.allocation import described
from amp_nova.model.observation import DomainReading

STEP_S = 5.0
SPAN_S = 600.0
POINTS_MAX = int(SPAN_S / STEP_S) + 1
CHANGES_MAX = 60
FLOATS = 2 + len(CAUSES)
"""Floats per instance: booked, delivered, and shortfall by cause."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One instance at one point, summed over its vCPUs.

    ``booked`` and ``delivered`` are in reference cores, or in instructions per second if the
    instance books these. ``booked`` is 0 for best effort; ``delivered`` is ``None`` if it is not
    measured. ``short``: shortfall by cause since the previous point, as an average in reference
    cores.
    """

    booked: float
    delivered: float | None
    short: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """All instances at one time. ``resources`` is shared by points with the same instances.

    ``values``: ``FLOATS`` for each resource. ``booked_refcores`` and ``delivered_refcores``: the
    sums over all booked vCPUs whose delivery is measured.
    """

    time_s: float
    resources: tuple[str, ...]
    values: "array[float]"
    booked_refcores: float = 0.0
    delivered_refcores: float = 0.0

    @property
    def short(self) -> tuple[float, ...]:
        """Shortfall by cause, summed over all instances."""
        return tuple(sum(self.values[2 + i :: FLOATS]) for i in range(len(CAUSES)))


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of a vCPU or instance: the latest of ``count`` in a row for the same reason."""

    time_s: float
    who: str
    what: str
    why: str
    failure: str | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class History:
    """What the page shows besides the last cycle; oldest points and newest changes first.

    ``short_ref_s``: the accumulated shortfall of each instance at the last point, by cause;
    ``failure``: the error after which this history was started, if any.
    """

    points: tuple[Point, ...] = ()
    changes: tuple[Changed, ...] = ()
    short_ref_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    failure: str = ""


def advance(before: History, cycle: Cycle, now_s: float) -> History:
    """The history with a cycle added; ``now_s`` is in seconds since the epoch."""
    after = before
    if cycle.changes:
        after = replace(after, changes=_changes(before.changes, cycle, now_s))
    points = before.points
    # If the clock was set back, start again: old points would be in the future.
    if points and now_s < points[-1].time_s:
        points = ()
    if points and now_s < points[-1].time_s + STEP_S * 0.999:
        return after
    point, short_ref_s = _point(before, points, cycle, now_s)
    recent = (p for p in (*points, point)[-POINTS_MAX:] if p.time_s >= now_s - SPAN_S - STEP_S)
    return replace(after, points=tuple(recent), short_ref_s=short_ref_s)


def series(points: Sequence[Point], wanted: Collection[str]) -> dict[str, list[Shown | None]]:
    """The points of each of these instances; ``None`` for times at which it was not present."""
    found: dict[str, list[Shown | None]] = {resource: [None] * len(points) for resource in wanted}
    for number, point in enumerate(points):
        for i, resource in enumerate(point.resources):
            if resource in found:
                booked, delivered, *short = point.values[i * FLOATS : (i + 1) * FLOATS]
                known = None if math.isnan(delivered) else delivered
                found[resource][number] = Shown(booked, known, tuple(short))
    return found


def lost_ref_s(points: Sequence[Point]) -> dict[str, float]:
    """The shortfall of each instance over these points, in reference-core seconds."""
    lost: dict[str, float] = {}
    for before, point in pairwise(points):
        span_s = point.time_s - before.time_s
        for i, resource in enumerate(point.resources):
            short = sum(point.values[i * FLOATS + 2 : (i + 1) * FLOATS])
            lost[resource] = lost.get(resource, 0.0) + short * span_s
    return lost


def _point(
    before: History, points: tuple[Point, ...], cycle: Cycle, now_s: float
) -> tuple[Point, Mapping[str, tuple[float, ...]]]:
    span_s = now_s - points[-1].time_s if points else 0.0
    resources = tuple(d.domain.resource for d in cycle.observation.domains)
    if points and points[-1].resources == resources:
        resources = points[-1].resources
    values = array("f")
    totals: dict[str, tuple[float, ...]] = {}
    all_booked = all_delivered = 0.0
    for domain in cycle.observation.domains:
        resource = domain.domain.resource
        booked, delivered, refcores, short = _instance(cycle, domain)
        known = before.short_ref_s.get(resource, short)
        since = (
            max(0.0, a - b) / span_s if span_s else 0.0 for a, b in zip(short, known, strict=True)
        )
        values.extend((booked, delivered, *since))
        totals[resource] = short
        all_booked += refcores[0]
        all_delivered += refcores[1]
    return Point(now_s, resources, values, all_booked, all_delivered), totals


def _instance(
    cycle: Cycle, domain: DomainReading
) -> tuple[float, float, tuple[float, float], tuple[float, ...]]:
    """Booked and delivered, in the instance's unit; both of its bookings in reference cores; and
    its accumulated shortfall by cause."""
    booked = delivered = booked_refcores = delivered_refcores = 0.0
    short = (0.0,) * len(CAUSES)
    keys = [(domain.domain.resource, v.index) for v in domain.vcpus]
    in_ips = any(cycle.entitlements[key].booking.ips for key in keys)
    for key in keys:
        entitlement, account = cycle.entitlements[key], cycle.accounts.of(key)
        booking, last = entitlement.booking, account.last
        if booking.kind != "best_effort" and last.refcores is not None:
            booked_refcores += in_refcores(cycle, key)
            delivered_refcores += last.refcores
        booked += (booking.ips if in_ips else booking.refcores) or 0.0
        found = last.ips if in_ips else last.refcores
        delivered += math.nan if found is None else found
        if any(account.shortfall_ref_s):
            short = tuple(a + b for a, b in zip(short, account.shortfall_ref_s, strict=True))
    return booked, delivered, (booked_refcores, delivered_refcores), short


def in_refcores(cycle: Cycle, key: tuple[str, int]) -> float:
    """A booking converted to reference cores, also from Ips; 0 if that is unknown."""
    entitlement = cycle.entitlements[key]
    if entitlement.booking.refcores is not None:
        return entitlement.booking.refcores
    home = entitlement.home
    if home.cores is None or home.core_type is None:
        return 0.0
    return home.cores * (cycle.topology.core_type(home.core_type).coefficient or 0.0)


def _changes(before: tuple[Changed, ...], cycle: Cycle, now_s: float) -> tuple[Changed, ...]:
    """The changes with those of a cycle added; changes in a row for one reason are one entry."""
    names = {
        d.domain.resource: d.domain.display_name or d.domain.name for d in cycle.observation.domains
    }
    new = list(islice(_made(cycle, names, now_s), CHANGES_MAX))
    kept = list(before)
    for i, changed in enumerate(new):
        known = next((c for c in kept if c.who == changed.who), None)
        if known and (known.why, known.failure) == (changed.why, changed.failure):
            kept.remove(known)
            new[i] = replace(changed, count=known.count + 1)
    return tuple([*new, *kept][:CHANGES_MAX])


def _made(cycle: Cycle, names: Mapping[str, str], now_s: float) -> Iterator[Changed]:
    for change in cycle.changes.vcpus:
        failed = cycle.outcome.failures.get(change.key)
        who = f"{names[change.key[0]]} vCPU {change.key[1]}"
        what = ", then ".join(map(described, change.steps))
        said = failed.message if failed else None
        yield Changed(now_s, who, what, change.reason, said)
    for resource, weight in cycle.changes.cpu_weights.items():
        failed = cycle.outcome.weight_failures.get(resource)
        said = failed.message if failed else None
        why = "bookings have precedence"
        yield Changed(now_s, names[resource], f"CPU weight {weight}", why, said)
