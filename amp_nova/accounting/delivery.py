# SPDX-License-Identifier: Apache-2.0
"""What each vCPU was owed and got, in reference-core seconds, and why it got less.

Computed from what the vCPU ran while it wanted to run, never from what was configured.
"""

import bisect

from msgspec import Struct, structs

from amp_nova.accounting import slowdown
from amp_nova.accounting.slowdown import Recent
from amp_nova.accounting.speed_loss import NOTHING, Losses, losses
from amp_nova.accounting.would_throttle import WouldLimit, throttled_s
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.delivered import (
    IPS_UNKNOWN,
    NOTHING_DELIVERED,
    Delivery,
    delivery,
    owed,
)
from amp_nova.model.observation import Usage
from amp_nova.model.topology import CoreType

CAUSES = ("throttle", "contention", "core_type", "frequency", "smt")
"""Why capacity was not delivered. The last two are 0 unless they can be measured
(``accounting.speed_loss``)."""

RATIO_BUCKETS = (0.5, 0.8, 0.9, 0.95, 0.97, 0.99, 1.0, 1.01, 1.03, 1.05, 1.1)
"""Upper bounds of the histogram of delivered ratios over windows."""
KEPT_RATIO = 0.95
"""A window or minute that delivers less of a booking is missed."""

MINUTE_S = 60.0
"""Length of the windows in the histogram of delivered ratios, from which service levels follow."""

DEMAND_LEAST_RATIO = 0.02
"""A window with demand for less than this share of the booking has no delivered ratio."""


BEST_EFFORT = VcpuBooking(0)
UNKNOWN = CoreType("unknown")


class Conditions(Struct, frozen=True):
    """The conditions under which a vCPU ran: the core type it was on, and its booking.

    ``position``: the core type's index in the topology; ``types``: the number of core types;
    ``coefficient``: ``None`` if unknown; ``edge_s``: how far demand and delivery may be apart at
    the end of an interval (one period of the bandwidth limit, plus the time between two samples).
    ``limit_cores``: its limit when the interval began.
    ``would``: the limit that enforcement would set, if bookings are only observed. ``bounded``:
    whether a limit above its own, which its own throttled time leaves out, makes it wait.
    """

    position: int
    types: int
    coefficient: float | None
    booking: VcpuBooking = BEST_EFFORT
    edge_s: float = 0.0
    core_type: CoreType = UNKNOWN
    limit_cores: float = 1.0
    would: WouldLimit | None = None
    bounded: bool = False


class Window(Struct, frozen=True):
    """What was owed and delivered since the window began.

    ``owed`` is in the unit of the booking times seconds, and so is ``excused``, which the guest's
    own work could not have reached; ``instructions`` is ``None`` if they are not counted.
    ``behind_s``: how far the vCPU was behind its booking at most, in its seconds.
    """

    wall_s: float = 0.0
    owed: float = 0.0
    excused: float = 0.0
    ref_s: float = 0.0
    instructions: float | None = None
    behind_s: float = 0.0


EMPTY_WINDOW = Window()


class Ratios(Struct, frozen=True):
    """A histogram of delivered ratios, one per minute: counts by bucket, and the ratios' sum."""

    counts: tuple[int, ...] = (0,) * (len(RATIO_BUCKETS) + 1)
    total: float = 0.0

    def with_one(self, ratio: float) -> "Ratios":
        """The histogram with one more ratio."""
        at = bisect.bisect_left(RATIO_BUCKETS, ratio)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Ratios(counts, self.total + ratio)


class Last(Struct, frozen=True):
    """The last whole window: delivered over owed, and what was delivered per second of wall time.

    ``ratio`` is ``None`` if there was too little demand, the others if they are not measured.
    ``behind_s`` is that of the current minute.
    """

    ratio: float | None = None
    refcores: float | None = None
    ips: float | None = None
    behind_s: float = 0.0


class Account(Struct, frozen=True):
    """What one vCPU was owed and got since the agent first saw it.

    ``cpu_s``: CPU seconds by core type, in the topology's order. ``ref_s``: CPU seconds multiplied
    by the coefficient that applied. ``shortfall_ref_s``: by cause, in the order of ``CAUSES``.
    ``balance``: owed but not yet counted as shortfall, in the unit of the booking times seconds.
    ``recent``: about the last minute, for the slowdown of vCPUs without a booking. ``minute``: the
    sum of the windows closed in the current minute; ``ratios``: the histogram of earlier minutes.
    ``delivery``: of a vCPU with a booking, or that is only observed.
    """

    cpu_s: tuple[float, ...] = ()
    ref_s: float = 0.0
    shortfall_ref_s: tuple[float, ...] = (0.0,) * len(CAUSES)
    balance: float = 0.0
    window: Window = Window()
    last: Last = Last()
    ratios: Ratios = Ratios()
    delivery: Delivery = NOTHING_DELIVERED
    recent: Recent = slowdown.NOTHING
    minute: Window = Window()


def causes(
    short: float, used: Usage, booked_per_s: float, gives_per_s: float, lost: Losses = NOTHING
) -> tuple[float, float, float, float, float]:
    """Divide a shortfall among ``CAUSES``; all in the unit of the booking.

    In this order: speed lost to low clocks and busy siblings; the part of the booking that exceeds
    what a whole pCPU of the core type gives (``gives_per_s``); what others ran while the vCPU
    waited. The rest is due to throttling.
    """
    frequency = min(short, lost.frequency_ref_s)
    smt = min(short - frequency, lost.smt_ref_s)
    left = short - frequency - smt
    core_type = min(left, max(0.0, booked_per_s - gives_per_s) * used.demand_s)
    contention = min(left - core_type, used.contention_s * gives_per_s)
    return left - core_type - contention, contention, core_type, frequency, smt


class _Interval(Struct, frozen=True):
    """An interval in the unit of a booking.

    ``worth``: the CPU time by calibration; ``delivered``: what it was worth in fact;
    ``gives_per_s``: what one second of the pCPU is worth; ``ref_s``: reference-core seconds per
    unit of the booking; ``excused_ratio``: how much of the booking such work cannot reach on a
    whole core.
    """

    booked_per_s: float
    worth: float
    delivered: float
    gives_per_s: float
    ref_s: float
    lost: Losses
    excused_ratio: float = 0.0


def _in_refcores(used: Usage, ran: Conditions, lost: Losses) -> _Interval | None:
    refcores = ran.booking.refcores
    if refcores is None or ran.coefficient is None:
        return None
    worth = used.run_s * ran.coefficient
    return _Interval(refcores, worth, worth - lost.total_ref_s, ran.coefficient, 1.0, lost)


def _in_ips(used: Usage, ran: Conditions, lost: Losses) -> _Interval | None:
    """``gives_per_s`` is this work's own Ips without losses; nominal Ips if it did not run.

    That work is slower than nominal excuses the host, because a guest can be as slow as it likes:
    minutes are not missed for it (``Window.excused``), and its shortfall counts as ``core_type``.
    """
    if ran.booking.ips is None or used.instructions is None:
        return None
    worth = used.run_s * (ran.coefficient or 0.0)
    kept_ratio = 1.0 - lost.total_ref_s / worth if worth > 0.0 else 1.0
    booked, gives = ran.booking.ips, ran.core_type.nominal_ips or 0.0
    reachable = min(booked, gives or booked)
    if used.run_s > 0.0 and kept_ratio > 0.0:
        gives = used.instructions / used.run_s / kept_ratio
    per_ref_s = gives / ran.coefficient if ran.coefficient else 0.0
    lost = Losses(lost.frequency_ref_s * per_ref_s, lost.smt_ref_s * per_ref_s)
    ref_s = 1.0 / per_ref_s if per_ref_s else 0.0
    excused_ratio = max(0.0, reachable - gives) / booked
    worth = used.run_s * (ran.core_type.nominal_ips or IPS_UNKNOWN)
    return _Interval(booked, worth, used.instructions, gives, ref_s, lost, excused_ratio)


def _shortfall(
    account: Account, used: Usage, edge: float, unit: _Interval, behind: float
) -> tuple[float, tuple[float, ...]]:
    """The new balance, and the shortfall by cause with this interval's share added.

    ``behind``: the balance before any of it counts as a shortfall.

    A quota makes a vCPU run in one burst per period, and an interval may end within a period. So a
    balance of up to one period's capacity (``edge``) is carried over, in either direction.
    """
    balance = max(-edge, behind)
    if balance <= edge:
        return balance, account.shortfall_ref_s
    parts = causes(balance - edge, used, unit.booked_per_s, unit.gives_per_s, unit.lost)
    added = zip(account.shortfall_ref_s, parts, strict=True)
    return edge, tuple(a + b * unit.ref_s for a, b in added)


def _delivered(before: Delivery, used: Usage, ran: Conditions, unit: _Interval | None) -> Delivery:
    """The sums after an interval; if bookings are only observed, as they would have been."""
    limit_cores, would, kept_ratio = ran.limit_cores, ran.would, 1.0
    beyond_ref_s = least_s = most_s = 0.0
    if would is not None:
        limit_cores, speed_ratio = would.cores, 1.0
        if ran.coefficient and would.coefficient:
            speed_ratio = ran.coefficient / would.coefficient
        least_s, most_s = throttled_s(used, limit_cores, speed_ratio)
        if used.run_s > 0.0:
            kept_ratio = min(1.0, limit_cores * used.wall_s / (used.run_s * speed_ratio))
    made = Delivery(used.wall_s, used.demand_s)
    if unit is not None:
        worth, got, booked = kept_ratio * unit.worth, kept_ratio * unit.delivered, unit.booked_per_s
        made = delivery(used, limit_cores, booked, worth, got)
        if would is not None:
            beyond_ref_s = max(0.0, unit.delivered - booked * used.wall_s) * unit.ref_s
    return Delivery(
        before.wall_s + made.wall_s,
        before.demand_s + made.demand_s,
        before.owed + made.owed,
        before.worth + made.worth,
        before.got + made.got,
        before.limited + made.limited,
        before.beyond_ref_s + beyond_ref_s,
        before.throttled_least_s + least_s,
        before.throttled_most_s + most_s,
    )


def _cpu_s(account: Account, run_s: float, ran: Conditions) -> tuple[float, ...]:
    cpu_s = list(account.cpu_s) if len(account.cpu_s) == ran.types else [0.0] * ran.types
    cpu_s[ran.position] += run_s
    return tuple(cpu_s)


def add_interval(account: Account, used: Usage, ran: Conditions, window_s: float) -> Account:
    """Add an interval that lies entirely on one core type; close the window if it is full."""
    coefficient = ran.coefficient or 0.0
    worth = used.run_s * coefficient
    lost = losses(used, coefficient, ran.core_type)
    owes, excused, balance, shortfall = 0.0, 0.0, account.balance, account.shortfall_ref_s
    sums, behind_s = account.delivery, 0.0
    unit = (_in_refcores if ran.booking.ips is None else _in_ips)(used, ran, lost)
    if unit is not None:
        owes = owed(used, unit.booked_per_s, unit.delivered)
        excused = owes * unit.excused_ratio
        behind = balance + owes - unit.delivered
        behind_s = behind / unit.booked_per_s if owes > 0.0 else 0.0
        edge = unit.booked_per_s * ran.edge_s
        balance, shortfall = _shortfall(account, used, edge, unit, behind)
    if unit is not None or ran.would is not None:
        sums = _delivered(sums, used, ran, unit)
    interval = Window(
        used.wall_s, owes, excused, worth - lost.total_ref_s, used.instructions, behind_s
    )
    window = _sum(account.window, interval)
    last, minute, ratios = account.last, account.minute, account.ratios
    if window.wall_s >= window_s * 0.999:
        last, minute, ratios = _closed(window, minute, ratios, ran)
        window = EMPTY_WINDOW
    recent = slowdown.NOTHING
    if ran.booking.kind == "best_effort":
        recent = slowdown.enter(account.recent, used, ran.position, ran.types)
    return Account(
        _cpu_s(account, used.run_s, ran),
        account.ref_s + worth,
        shortfall,
        balance,
        window,
        last,
        ratios,
        sums,
        recent,
        minute,
    )


def _closed(
    window: Window, minute: Window, ratios: Ratios, ran: Conditions
) -> tuple[Last, Window, Ratios]:
    """The results of a full window, the minute with this window added, and the histogram."""
    counted, minute = window.instructions, _sum(minute, window)
    last = Last(
        _ratio(window, ran),
        None if ran.coefficient is None else window.ref_s / window.wall_s,
        None if counted is None else counted / window.wall_s,
        minute.behind_s,
    )
    if minute.wall_s >= MINUTE_S * 0.999:
        # A long idle window may have made it longer; all of its demand fell within one minute.
        whole = structs.replace(minute, wall_s=MINUTE_S, owed=minute.owed - minute.excused)
        if (ratio := _ratio(whole, ran)) is not None:
            ratios = ratios.with_one(ratio)
        minute = Window(minute.wall_s % MINUTE_S if minute.wall_s > MINUTE_S else 0.0)
    return last, minute, ratios


def _sum(before: Window, after: Window) -> Window:
    counted = (before.instructions, after.instructions)
    return Window(
        before.wall_s + after.wall_s,
        before.owed + after.owed,
        before.excused + after.excused,
        before.ref_s + after.ref_s,
        None if counted == (None, None) else sum(c or 0.0 for c in counted),
        max(before.behind_s, after.behind_s),
    )


def _ratio(window: Window, ran: Conditions) -> float | None:
    """Delivered over owed; ``None`` if there was too little demand."""
    size, delivered = ran.booking.refcores, window.ref_s
    if ran.booking.ips is not None:
        size, delivered = ran.booking.ips, window.instructions or 0.0
    least = DEMAND_LEAST_RATIO * (size or 0.0) * window.wall_s
    return delivered / window.owed if window.owed > least else None
