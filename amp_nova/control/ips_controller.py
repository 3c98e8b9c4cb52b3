# SPDX-License-Identifier: Apache-2.0
"""The controller that holds a booking in instructions per second (teabe2017, solution 2).

It receives what a vCPU has done since it last acted, decides whether to act, and if so returns the
share of a pCPU that the vCPU may use from now on. The published rule does not hold a booking: the
laboratory has it, for comparison.

It feeds forward: a vCPU that books ``B`` and retires ``rho`` instructions per CPU second gets the
share ``B / rho`` of a pCPU. The error that a wrong ``rho`` causes until it is noticed is
carried in a balance and paid back. The balance is bounded, and contains little that the limit did
not cause, so there is no windup on a core that cannot give the booking. The vCPU is sampled
``TICKS`` times per sampling period, which is cheap. The controller acts as soon as instructions per
CPU second change, otherwise once per sampling period, and writes only if necessary.

It avoids writes because on a real host every write of a quota refills the bandwidth and forgives
what was overrun: it gives CPU time away, up to a period's quota and a timer tick. How much is
measured (``IpsState.gift_s``). A limit is not written again until that gift is a small part of the
booking over the time since, nor for less than a write costs. Where writes are free, it writes more
often.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct, structs

from amp_nova.model.bandwidth import (
    HYSTERESIS_RATIO,
    PERIOD_MAX_US,
    PERIOD_MIN_US,
    QUOTA_MIN_US,
    TICK_S,
    Bandwidth,
)

TICKS = 8
"""Samples per sampling period. A phase change is noticed within one or two samples: twice the
instructions per CPU second for 12.5 ms exceed a second's booking by 1.25 %. With 5 samples, 1 s
windows that began and ended with such a change were off by more than 3 % (``test_ips_table``); with
more than 8, sampling cost more CPU time and gained nothing."""
EARLY_S = 0.004
EARLY_RATIO = 0.1
"""The controller acts before the sampling period ends if instructions deviate from what ``rho``
predicts by more than ``EARLY_S`` of the booking plus this part of them: less may be chance."""
RHO_RUN_LEAST_S = 0.000_1
"""Instructions per CPU second cannot be measured over less CPU time than this."""
RHO_MEMORY_S = 0.4
"""Time over which instructions per CPU second are averaged while the work does not change."""
EDGE_GIFTS = 2.0
"""An excess is ignored up to what this many writes give away, because paying it back takes two."""
HOLD_RATIO = 0.25
"""A limit is held until what its write gave away is at most this part of the booking since then."""
GIFT_WEIGHT = 0.3
"""Weight of the last write in the moving average of what writes give away."""
REPAY_S = 0.1
"""The shortest time over which a balance is paid back, but never less than a sampling period: the
limit that repays stays in force for that long, so with a shorter time it would repay too much."""
WANTED_LEAST_RATIO = 0.25
"""A vCPU that wants to run for part of the time is paid back in that part of the repayment time,
and at least in this part of it."""
REPAY_LEAST_RATIO = 0.2
"""While it pays an excess back, a vCPU keeps at least this part of ``B / rho``."""
CARRY_S = 0.1
"""The largest balance that a limit may leave owed: this many seconds of the booking, or the
instructions of ``OVERRUN_S`` of CPU time if those are more."""
OVERRUN_S = 2.0 * TICK_S
"""By how much CPU time a vCPU may miss its limit between two samples because it pays for overruns.
That is no sign of contention."""
CARRY_LOST_S = 0.02
"""The most that is carried over of what contention took, in seconds of the booking."""
OVERDRAFT_S = 1.0
"""The largest excess that is paid back, in seconds of the booking; more is forgiven."""
RHO_UNKNOWN = 1e10
"""Instructions per CPU second assumed until they are measured: more than any core retires, so that
the first limit gives less than is booked rather than more."""


class IpsTerms(Struct, frozen=True):
    """What one vCPU books: instructions per second, and how many seconds of them it may bank.

    ``sp_s``: the sampling period. ``core_type``: where it runs, ``None`` if that may be several;
    ``nominal_ips``: those of that core type.
    """

    ips: float
    burst_s: float = 0.0
    sp_s: float = 0.1
    most_share: float = 1.0
    """The largest share of a pCPU in a burst: the rest is what the neighbours booked."""
    core_type: str | None = None
    nominal_ips: float | None = None


class Work(Struct, frozen=True):
    """What a vCPU did in an interval of ``wall_s``."""

    wall_s: float = 0.0
    run_s: float = 0.0
    wait_s: float = 0.0
    instructions: float = 0.0


class IpsState(Struct, frozen=True):
    """What a controller remembers of one vCPU.

    ``share``: of a pCPU. ``rho``: instructions per CPU second, measured over ``rho_run_s`` of CPU
    time; ``None`` before the first measurement. ``balance``: instructions owed to the vCPU,
    negative after an excess. ``banked``: instructions saved while it did not want to run.
    ``forward``: ``B / rho`` when the limit was last written. ``gift_s``: CPU time that a write
    gives away.
    """

    share: float
    in_force_s: float = 0.0
    """How long the share has been in force."""
    rho: float | None = None
    rho_run_s: float = 0.0
    balance: float = 0.0
    banked: float = 0.0
    forward: float = 0.0
    gift_s: float = 0.0
    unreported_s: float = 0.0
    """Time off the pCPU that is either a wait which the kernel has yet to report, or no demand."""


@dataclass(frozen=True, slots=True)
class Controller:
    """A control rule that acts once per sampling period, and as soon as the work changes.

    ``changed(state, terms, run_s, instructions)``: whether the work has changed, judged at every
    sample from CPU seconds and instructions since the controller last acted.
    ``act(state, terms, work, latest, changed)``: the new state. ``work``: what the vCPU did since
    the controller last acted; ``latest``: the part of that since the last sample.
    """

    changed: Callable[[IpsState, IpsTerms, float, float], bool]
    act: Callable[[IpsState, IpsTerms, Work, Work, bool], IpsState]


def _period_us(share: float) -> int:
    """The shortest period of at least 20 ms for which the kernel accepts the quota.

    A short period keeps small what a write gives away, and the error of samples within a period.
    """
    if share < QUOTA_MIN_US / PERIOD_MIN_US:
        return min(PERIOD_MAX_US, round(QUOTA_MIN_US / max(share, 1e-9)))
    return PERIOD_MIN_US


def limit(share: float) -> Bandwidth:
    """The CFS bandwidth limit for a share of a pCPU."""
    period_us = _period_us(share)
    return Bandwidth(min(period_us, max(QUOTA_MIN_US, round(share * period_us))), period_us)


def first_share(ips: float, rho: float | None) -> float:
    """The first share of a vCPU that is expected to retire ``rho`` instructions per CPU second."""
    return min(1.0, ips / (rho or RHO_UNKNOWN))


def _longest_wait_s(share: float) -> float:
    """The longest wait that the limit for this share can cause."""
    return _period_us(share) / 1e6 + TICK_S / max(share, 1e-3)


def _wanted(state: IpsState, work: Work) -> tuple[float, float]:
    """``unreported_s``, and an estimate of the time in which the vCPU wanted a pCPU.

    The kernel reports a wait when it ends. So unexplained time off the pCPU may belong to a wait
    that has not ended, and a reported wait may have begun before the interval. Time off the pCPU
    counts as a wait up to the longest wait that the limit can cause, and beyond that as no demand.
    """
    wall_s, run_s = work.wall_s, work.run_s
    longest_s = _longest_wait_s(state.share)
    off_s, idle_s = wall_s - run_s, 0.0
    unreported_s = state.unreported_s + wall_s - run_s - work.wait_s
    if unreported_s > longest_s:
        idle_s = min(unreported_s - longest_s, max(0.0, off_s))
        unreported_s = min(unreported_s - idle_s, longest_s)
    elif unreported_s < 0.0:
        unreported_s = 0.0
    wanted_s = run_s + (off_s - idle_s)
    return unreported_s, wanted_s if wanted_s < wall_s else wall_s


def _balanced(
    state: IpsState, rho: float | None, terms: IpsTerms, work: Work, wanted_s: float
) -> tuple[float, float]:
    """``balance`` and ``banked`` after ``work``.

    The vCPU is owed its booking for the time it wanted to run. Time without demand first pays an
    excess back and then fills the bank. So a vCPU that runs ahead and then sleeps, all within its
    booking, loses nothing, as in its account (``delivery.owed``).
    """
    wall_s, instructions = work.wall_s, work.instructions
    ips, paid, spent = terms.ips, 0.0, 0.0
    unused = ips * (wall_s - wanted_s)
    balance = state.balance + ips * wanted_s - instructions
    if balance > 0.0:
        most = max(ips * CARRY_S, (rho or 0.0) * OVERRUN_S)
        carry = _carried(state, ips, work, wanted_s, most)
        balance = min(balance, max(carry, state.balance), most)
    elif balance < 0.0:
        paid = min(unused, -balance)
        balance += paid
        spent = min(state.banked, -balance)
        balance = max(balance + spent, -ips * OVERDRAFT_S)
    banked, full = state.banked - spent + unused - paid, ips * terms.burst_s
    return balance, banked if banked < full else full


def _carried(state: IpsState, ips: float, work: Work, wanted_s: float, most: float) -> float:
    """The most that the vCPU is owed after ``work``: ``most`` if its limit held it back."""
    run_s, share = work.run_s, state.share
    if run_s == 0.0 or share >= 1.0:  # probably asleep, or nothing limits it
        return 0.0
    due_s = share * wanted_s
    bound = run_s >= due_s - OVERRUN_S or run_s >= 0.9 * due_s
    return most if bound else ips * CARRY_LOST_S


def _changed(state: IpsState, terms: IpsTerms, run_s: float, instructions: float) -> bool:
    """Whether instructions deviate by more than chance, and by more than a write gives away."""
    if run_s < RHO_RUN_LEAST_S:
        return False
    rho = state.rho or RHO_UNKNOWN
    expected = rho * run_s
    worth = EARLY_S * terms.ips + EARLY_RATIO * expected + state.gift_s * rho
    return abs(instructions - expected) > worth


def _learned(
    state: IpsState, work: Work, wanted_s: float, latest: Work, *, changed: bool
) -> tuple[float | None, float, float]:
    """``rho``, ``rho_run_s`` and ``gift_s``, updated with what the vCPU did."""
    rho, rho_run_s, gift_s = state.rho, state.rho_run_s, state.gift_s
    if changed or rho is None:
        interval = latest if latest.run_s >= RHO_RUN_LEAST_S else work
        if interval.run_s < RHO_RUN_LEAST_S or not interval.instructions:
            return rho, rho_run_s, gift_s
        return interval.instructions / interval.run_s, interval.run_s, gift_s
    if state.in_force_s == 0.0 and wanted_s > 0.9 * work.wall_s:  # just written
        gave_s = work.run_s - state.share * wanted_s
        gift_s = max(0.0, gift_s + GIFT_WEIGHT * (gave_s - gift_s))
    if work.run_s < RHO_RUN_LEAST_S or not work.instructions:
        return rho, rho_run_s, gift_s
    keep_s = min(rho_run_s, RHO_MEMORY_S * state.share)
    rho_run_s = keep_s + work.run_s
    return (rho * keep_s + work.instructions) / rho_run_s, rho_run_s, gift_s


def _decided(state: IpsState, terms: IpsTerms, wanted_ratio: float, *, changed: bool) -> IpsState:
    """The state with a new share if one is needed; its balance must be up to date.

    ``wanted_ratio``: share of time in which the vCPU wanted to run. Nothing can be paid back in the
    rest of the time.
    """
    share_now, rho, gift_s = state.share, state.rho, state.gift_s
    balance, banked = state.balance, state.banked
    assert rho is not None
    forward = min(1.0, terms.ips / rho)
    hold_s = gift_s / (HOLD_RATIO * forward)
    if not changed and state.in_force_s < hold_s * 0.999:
        return state
    little = EARLY_S * terms.ips
    steady = not changed and abs(forward - state.forward) <= HYSTERESIS_RATIO * forward
    if steady and not banked and -little - EDGE_GIFTS * gift_s * rho <= balance <= little:
        share = forward
    else:
        least_s = max(REPAY_S, terms.sp_s)
        repay_s = max(least_s * max(wanted_ratio, WANTED_LEAST_RATIO), hold_s)
        most = min(1.0, max(forward, terms.most_share))
        least = forward * REPAY_LEAST_RATIO
        repay_ips = balance / repay_s + banked / least_s
        share = min(most, (terms.ips + repay_ips) / rho)
        if share < least and share_now <= 2.0 * least:
            return state  # already about as low as allowed
        share = max(share, least)
    if abs(share - share_now) <= HYSTERESIS_RATIO * forward:
        return state
    return structs.replace(state, share=share, forward=forward, in_force_s=0.0)


def moved(
    state: IpsState, terms: IpsTerms, work: Work | None, old: float | None, new: float | None
) -> IpsState:
    """The state after a move to another core type, where another limit applies.

    ``work``: what the vCPU did since the controller last acted; it enters the balance. ``old`` and
    ``new``: nominal Ips before and after; ``rho`` is expected to change in the same ratio.
    """
    rho = state.rho
    if work is not None:
        unreported_s, wanted_s = _wanted(state, work)
        balance, banked = _balanced(state, rho, terms, work, wanted_s)
        state = structs.replace(state, unreported_s=unreported_s, balance=balance, banked=banked)
    if rho is not None and old is not None and new is not None:
        rho *= new / old
    return structs.replace(state, rho=rho, rho_run_s=0.0, in_force_s=0.0)


def _default(state: IpsState, terms: IpsTerms, work: Work, latest: Work, changed: bool) -> IpsState:
    """Feed forward, with a carried balance."""
    unreported_s, wanted_s = _wanted(state, work)
    rho, rho_run_s, gift_s = _learned(state, work, wanted_s, latest, changed=changed)
    balance, banked = _balanced(state, rho, terms, work, wanted_s)
    state = IpsState(
        state.share,
        state.in_force_s + work.wall_s,
        rho,
        rho_run_s,
        balance,
        banked,
        state.forward,
        gift_s,
        unreported_s,
    )
    if rho is None:  # it has not run yet
        return state
    return _decided(state, terms, wanted_s / work.wall_s, changed=changed)


DEFAULT = Controller(_changed, _default)
