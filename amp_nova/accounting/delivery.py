"""What each vCPU was owed and got, in reference-core seconds, and why it got less.

Measured from what the vCPU really ran while it wanted to run, never from what was configured.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from amp_nova.accounting import slowdown
from amp_nova.accounting.slowdown import Recent
from amp_nova.accounting.speed_loss import NOTHING, Losses, losses
from amp_nova.control import burst
from amp_nova.model.observation import Usage

CAUSES = ("throttle", "contention", "core_type", "frequency", "smt")
"""Why capacity was not delivered; the last two only where they are measured
(``accounting.speed_loss``)."""

RATIO_BUCKETS = (0.5, 0.8, 0.9, 0.95, 0.97, 0.99, 1.0, 1.01, 1.03, 1.05, 1.1)
"""Upper bounds of the histogram of delivered ratios over windows."""

DEMAND_LEAST_RATIO = 0.02
"""A window with demand for less of the booking than this says nothing about what is delivered."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """Under what terms a vCPU ran: the core type it was on, and its booking if it has one.

    ``position`` is the core type's place in the topology and ``types`` their number;
    ``coefficient`` is ``None`` where unknown; ``period_s`` that of the bandwidth limit; a booking
    is in ``refcores`` or in ``ips``; the others are as in ``CoreType``.
    """

    position: int
    types: int
    coefficient: float | None
    refcores: float | None = None
    period_s: float = 0.0
    clock_hz: float | None = None
    smt_busy_factor: float | None = None
    ips: float | None = None
    nominal_ips: float | None = None
    burst_s: float = 0.0
    """What of a booking in reference cores may be banked (``control.burst``)."""


@dataclass(frozen=True, slots=True)
class Account:
    """What one vCPU was promised and got since it is looked after.

    ``cpu_s``: CPU seconds by core type, in the topology's order; ``ref_s``: the same times the
    coefficient in force. ``shortfall_ref_s``: by cause, in the order of ``CAUSES``. ``balance``:
    owed and not yet counted as short. ``ratio``, ``delivered_refcores`` and ``delivered_ips`` are
    those of the last whole window, of which there were ``windows``. What is owed, the balance too,
    is in the unit of the booking times seconds: reference-core seconds or instructions.
    """

    cpu_s: tuple[float, ...] = ()
    ref_s: float = 0.0
    shortfall_ref_s: tuple[float, ...] = (0.0,) * len(CAUSES)
    balance: float = 0.0
    window_s: float = 0.0
    window_owed: float = 0.0
    window_ref_s: float = 0.0
    window_instructions: float | None = None
    windows: int = 0
    ratio: float | None = None
    delivered_refcores: float | None = None
    delivered_ips: float | None = None
    banked_ref_s: float = 0.0
    """Unused booked time that it may still have."""
    recent: Recent = slowdown.NOTHING
    """What it did lately, to tell how much sharing the host slows it down."""


def owed(used: Usage, booked_per_s: float, got: float) -> float:
    """Capacity owed for an interval, in the unit of the booking times seconds.

    It is owed for the time the vCPU wanted to run. One that took its share early in the interval
    and then slept got all it wanted, so what it ``got`` within the booking counts as owed as well.
    """
    return max(booked_per_s * used.demand_s, min(got, booked_per_s * used.wall_s))


def causes(
    short: float, used: Usage, booked_per_s: float, gives_per_s: float, lost: Losses = NOTHING
) -> tuple[float, float, float, float, float]:
    """Divide a shortfall among ``CAUSES``; all in the unit of the booking.

    First what CPU time that it got was worth less, then what the core type cannot give even whole,
    ``gives_per_s``, then what others ran while it waited; the limit itself is to blame for the
    rest.
    """
    frequency = min(short, lost.frequency_ref_s)
    smt = min(short - frequency, lost.smt_ref_s)
    left = short - frequency - smt
    core_type = min(left, max(0.0, booked_per_s - gives_per_s) * used.demand_s)
    contention = min(left - core_type, used.contention_s * gives_per_s)
    return left - core_type - contention, contention, core_type, frequency, smt


@dataclass(frozen=True, slots=True)
class _Interval:
    """An interval in the unit of a booking.

    ``got``: what the CPU time is worth, ``delivered``: less ``lost``; ``gives_per_s``: what a
    second of the pCPU is; ``ref_s``: reference-core seconds in one of the unit.
    """

    booked_per_s: float
    got: float
    delivered: float
    gives_per_s: float
    ref_s: float
    lost: Losses


def _in_refcores(used: Usage, tenure: Tenure, lost: Losses) -> _Interval | None:
    if tenure.refcores is None or tenure.coefficient is None:
        return None
    worth = used.run_s * tenure.coefficient
    delivered = worth - lost.total_ref_s
    return _Interval(tenure.refcores, worth, delivered, tenure.coefficient, 1.0, lost)


def _in_ips(used: Usage, tenure: Tenure, lost: Losses) -> _Interval | None:
    """A second gives what this work retires in it, without losses; nominal when it did not run."""
    if tenure.ips is None or used.instructions is None:
        return None
    worth = used.run_s * (tenure.coefficient or 0.0)
    kept_ratio = 1.0 - lost.total_ref_s / worth if worth > 0.0 else 1.0
    gives = tenure.nominal_ips or 0.0
    if used.run_s > 0.0 and kept_ratio > 0.0:
        gives = used.instructions / used.run_s / kept_ratio
    per_ref_s = gives / tenure.coefficient if tenure.coefficient else 0.0
    lost = Losses(lost.frequency_ref_s * per_ref_s, lost.smt_ref_s * per_ref_s)
    got, ref_s = used.instructions, 1.0 / per_ref_s if per_ref_s else 0.0
    return _Interval(tenure.ips, got, got, gives, ref_s, lost)


def _shortfall(
    account: Account, used: Usage, tenure: Tenure, unit: _Interval, due: float
) -> tuple[float, tuple[float, ...]]:
    """The new balance, and the shortfall by cause with this interval's share added.

    A limit lets a vCPU run in bursts, one a period, and an interval cuts them anywhere: up to one
    period's capacity is carried over, either way, before it counts.
    """
    edge = unit.booked_per_s * tenure.period_s
    balance = max(-edge, account.balance + due - unit.delivered)
    if balance <= edge:
        return balance, account.shortfall_ref_s
    parts = causes(balance - edge, used, unit.booked_per_s, unit.gives_per_s, unit.lost)
    added = zip(account.shortfall_ref_s, parts, strict=True)
    return edge, tuple(a + b * unit.ref_s for a, b in added)


def settle(account: Account, used: Usage, tenure: Tenure, window_s: float) -> Account:
    """Enter one interval, all on one core type; closes the window when ``window_s`` are full."""
    cpu_s = account.cpu_s if len(account.cpu_s) == tenure.types else (0.0,) * tenure.types
    at = tenure.position
    cpu_s = (*cpu_s[:at], cpu_s[at] + used.run_s, *cpu_s[at + 1 :])
    worth = used.run_s * (tenure.coefficient or 0.0)
    lost = losses(used, tenure.coefficient or 0.0, tenure.clock_hz, tenure.smt_busy_factor)
    due, balance, shortfall = 0.0, account.balance, account.shortfall_ref_s
    banked_ref_s = 0.0
    unit = (_in_refcores if tenure.ips is None else _in_ips)(used, tenure, lost)
    if unit is not None:
        due = owed(used, unit.booked_per_s, unit.got)
        balance, shortfall = _shortfall(account, used, tenure, unit, due)
        if tenure.burst_s:
            before = account.banked_ref_s
            banked_ref_s = burst.banked(before, used, unit.booked_per_s, unit.got, tenure.burst_s)
    instructions = account.window_instructions
    if used.instructions is not None:
        instructions = (instructions or 0.0) + used.instructions
    settled = Account(
        cpu_s,
        account.ref_s + worth,
        shortfall,
        balance,
        account.window_s + used.wall_s,
        account.window_owed + due,
        account.window_ref_s + worth - lost.total_ref_s,
        instructions,
        account.windows,
        account.ratio,
        account.delivered_refcores,
        account.delivered_ips,
        banked_ref_s,
        slowdown.enter(account.recent, used, tenure.position, tenure.types),
    )
    return _closed(settled, tenure) if closes(settled, window_s) else settled


def closes(account: Account, window_s: float, more_s: float = 0.0) -> bool:
    """Whether ``more_s`` fill the window of an account."""
    return account.window_s + more_s >= window_s * 0.999


def rest(
    account: Account, wall_s: float, tenure: Tenure, window_s: float, *, counted: bool
) -> Account:
    """As ``settle``, for an interval in which the vCPU did not want to run: cheaper.

    Some interval before it must have been settled under the same terms. Intervals may be entered
    as one, up to the first that closes the window. ``counted``: whether its instructions are.
    """
    instructions = account.window_instructions
    if counted and instructions is None:
        instructions = 0.0
    banked_ref_s = account.banked_ref_s
    if tenure.burst_s and tenure.refcores is not None and tenure.coefficient is not None:
        asleep = Usage(wall_s, 0.0, 0.0, 0.0)
        banked_ref_s = burst.banked(banked_ref_s, asleep, tenure.refcores, 0.0, tenure.burst_s)
    rested = Account(
        account.cpu_s,
        account.ref_s,
        account.shortfall_ref_s,
        account.balance,
        account.window_s + wall_s,
        account.window_owed,
        account.window_ref_s,
        instructions,
        account.windows,
        account.ratio,
        account.delivered_refcores,
        account.delivered_ips,
        banked_ref_s,
        slowdown.fade(account.recent, wall_s),
    )
    return _closed(rested, tenure) if closes(rested, window_s) else rested


def _closed(account: Account, tenure: Tenure) -> Account:
    """The account with its window's results, and a new window begun."""
    wall_s, counted = account.window_s, account.window_instructions
    booked, delivered = tenure.refcores, account.window_ref_s
    if tenure.ips is not None:
        booked, delivered = tenure.ips, counted or 0.0
    least = DEMAND_LEAST_RATIO * (booked or 0.0) * wall_s
    return Account(
        account.cpu_s,
        account.ref_s,
        account.shortfall_ref_s,
        account.balance,
        windows=account.windows + 1,
        ratio=delivered / account.window_owed if account.window_owed > least else None,
        delivered_refcores=None if tenure.coefficient is None else account.window_ref_s / wall_s,
        delivered_ips=None if counted is None else counted / wall_s,
        banked_ref_s=account.banked_ref_s,
        recent=account.recent,
    )


def bucket(ratio: float, bounds: Sequence[float] = RATIO_BUCKETS) -> int:
    """Index of the histogram bucket a ratio falls in; ``len(bounds)`` is the one without bound."""
    return bisect.bisect_left(bounds, ratio)
