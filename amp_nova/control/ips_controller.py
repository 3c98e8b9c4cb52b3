"""Controllers that hold a booking in instructions per second (teabe2017, solution 2).

A controller is shown what a vCPU has done since it last acted, says whether that calls for action,
and then answers with the share of a pCPU that it may use from now on. ``CONTROLLERS`` has the
published rule in both readings of its text, which does not hold a booking, and the default.

The default feeds forward: a vCPU that retires ``rho`` instructions per CPU second gets ``B / rho``
of a pCPU. What a wrong ``rho`` gives away or takes until it is noticed is carried in a balance and
paid back. The balance is bounded, and nothing that the limit was not to blame for is paid: a core
that cannot give the booking winds nothing up. It looks ``TICKS`` times per sampling period, which
costs little, and acts at once when instructions per CPU second have changed; else once per period,
and only if there is a need.

Why it is shy of writing: on a real host every write of a quota refills the bandwidth and forgives
what was overrun, so each gives CPU time away, up to a period's quota and a timer tick. How much is
measured (``State.gift_s``), and a limit is not written again before that is a small part of what
the booking is meanwhile, nor for less than a write costs. Where writes are free it is not shy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from amp_nova.model.bandwidth import PERIOD_MAX_US, PERIOD_MIN_US, QUOTA_MIN_US, Bandwidth

TICKS = 8
"""Looks per sampling period. A phase change is noticed within one look or two: twice as many
instructions per CPU second for 12.5 ms are 1.25 % of a second's booking too many. With 5 looks,
seconds that begin and end with such a change were off by more than 3 % (benchmarks/test_ips_table);
more looks than 8 cost more and gained nothing."""
EARLY_S = 0.004
EARLY_RATIO = 0.1
"""Act before the sampling period is over when instructions are off by more than the booking of this
time and this part of them: less may be chance."""
RHO_RUN_LEAST_S = 0.000_1
"""Less CPU time than this says nothing about instructions per CPU second."""
RHO_MEMORY_S = 0.4
"""Time over which instructions per CPU second are averaged while they do not change."""
HYSTERESIS_RATIO = 0.01
"""A limit that is as close as this to what it should be is left alone."""
EDGE_GIFTS = 2.0
"""What a vCPU had too much is left alone up to what so many writes give away: to pay it back takes
two."""
HOLD_RATIO = 0.25
"""A limit is held until what its write gave away is this part of the booking meanwhile."""
GIFT_WEIGHT = 0.3
"""Weight of the last write in the measure of what writes give away."""
REPAY_S = 0.1
"""Least time in which a balance is paid back, and no less than a sampling period: the limit that
pays it is in force for so long, and what is owed would be paid more than once."""
WANTED_LEAST_RATIO = 0.25
"""A vCPU that wants to run part of the time is paid back in that part, but no faster than this."""
REPAY_LEAST_RATIO = 0.2
"""A vCPU that had too much keeps this part of what it would have."""
CARRY_S = 0.1
"""The most a limit may owe, as time of the booking; never less than what ``OVERRUN_S`` yields."""
TICK_S = 0.004
"""A timer tick of the kernel, as far as a quota is overrun at most. The vCPU waits for that
afterwards: the longer the smaller its limit."""
OVERRUN_S = 2.0 * TICK_S
"""CPU time by which a limit is missed now and then for that reason. Between two looks little may be
left of a small limit, which is no sign that others were in the way."""
CARRY_LOST_S = 0.02
"""The most that is carried of what others took."""
OVERDRAFT_S = 1.0
"""The most a vCPU may have had too much, as time of the booking; more is forgiven."""
RHO_UNKNOWN = 1e10
"""Instructions per CPU second until they are known: more than cores have, so as to begin with less
than is booked rather than with more."""


class Terms(NamedTuple):
    """What one vCPU booked: instructions per second, and seconds of them that it may bank."""

    ips: float
    burst_s: float = 0.0
    sp_s: float = 0.1
    most_share: float = 1.0
    """Of a pCPU: what a burst leaves its neighbours is not less than they booked."""


class Work(NamedTuple):
    """What a vCPU did in some time: instructions, and the seconds they took."""

    wall_s: float = 0.0
    run_s: float = 0.0
    wait_s: float = 0.0
    instructions: float = 0.0

    @property
    def demand_s(self) -> float:
        """Time it wanted a pCPU."""
        return min(self.wall_s, self.run_s + self.wait_s)


class State(NamedTuple):
    """What a controller remembers of one vCPU.

    ``share``: of a pCPU, in force for ``held_s``. ``rho``: instructions per CPU second, seen over
    ``known_s`` of CPU time, ``None`` before any were. ``balance``: instructions owed, negative when
    it had too many. ``banked``: those it may still have for time that it did not want.
    ``forward``: the share without either, when the limit was last written. ``gift_s``: CPU time
    that a write gives away.
    """

    share: float
    held_s: float = 0.0
    rho: float | None = None
    known_s: float = 0.0
    balance: float = 0.0
    banked: float = 0.0
    forward: float = 0.0
    gift_s: float = 0.0
    untold_s: float = 0.0
    """Time that may have been a wait which the kernel had not told of, or no demand at all."""
    printed: tuple[float, bool] = (0.0, False)
    """Of the published rule: instructions per second as it sees them, and whether the vCPU may not
    run in this sampling period."""


@dataclass(frozen=True, slots=True)
class Controller:
    """A way to control: it acts once per sampling period, and when the work has changed.

    ``changed``: whether it has, from the CPU seconds and instructions since the controller last
    acted; asked at every sample. ``act``: what is from now on, from what was, the terms, what the
    vCPU did since the controller last acted, and what of that since the last sample.
    """

    changed: Callable[[State, Terms, float, float], bool]
    act: Callable[[State, Terms, Work, Work], State]


def _period_us(share: float) -> int:
    """The shortest period whose quota the kernel takes, and no less than 20 ms.

    What a write gives away and how far samples cut into a period are least so.
    """
    if share < QUOTA_MIN_US / PERIOD_MIN_US:
        return min(PERIOD_MAX_US, round(QUOTA_MIN_US / max(share, 1e-9)))
    return PERIOD_MIN_US


def limit(share: float) -> Bandwidth:
    """The bandwidth limit of a share."""
    period_us = _period_us(share)
    return Bandwidth(min(period_us, max(QUOTA_MIN_US, round(share * period_us))), period_us)


def first_share(ips: float, rho: float | None) -> float:
    """The share to begin with, when so many instructions per CPU second are to be expected."""
    return min(1.0, ips / (rho or RHO_UNKNOWN))


def _told(state: State, work: Work) -> tuple[float, Work]:
    """``untold_s``, and the work with waits as they were, as far as can be told.

    A wait is counted when it ends, so time without one may be the begin of one, and more wait than
    time the end of one. As long as a limit may make a vCPU wait is taken for a wait; only more is
    time that it did not want.
    """
    wall_s, run_s, wait_s, instructions = work
    longest_s = _period_us(state.share) / 1e6 + TICK_S / max(state.share, 1e-3)
    untold_s = state.untold_s + wall_s - run_s - wait_s
    idle_s = min(max(0.0, untold_s - longest_s), max(0.0, wall_s - run_s))
    untold_s = min(max(0.0, untold_s - idle_s), longest_s)
    return untold_s, Work(wall_s, run_s, wall_s - run_s - idle_s, instructions)


def _balanced(state: State, rho: float | None, terms: Terms, work: Work) -> tuple[float, float]:
    """``balance`` and ``banked`` with what the vCPU did.

    Owed is the booking for the time the vCPU wanted to run. Time that it did not want pays what it
    had too much, and then fills the bank: so a burst within the booking costs nothing, as in the
    account (``account.owed``).
    """
    ips, share, wanted_s = terms.ips, state.share, work.demand_s
    due_s = share * wanted_s
    bound = share < 1.0 and work.run_s >= min(0.9 * due_s, due_s - OVERRUN_S)
    most = max(ips * CARRY_S, (rho or 0.0) * OVERRUN_S)
    carry = most if bound else ips * CARRY_LOST_S if share < 1.0 else 0.0
    if work.run_s == 0.0:  # asleep, more likely than not
        carry = 0.0
    balance = state.balance + ips * wanted_s - work.instructions
    balance = min(balance, max(carry, state.balance), most)
    unused = ips * (work.wall_s - wanted_s)
    paid = min(unused, max(0.0, -balance))
    balance += paid
    spent = min(state.banked, max(0.0, -balance))
    balance = max(balance + spent, -ips * OVERDRAFT_S)
    return balance, min(ips * terms.burst_s, state.banked - spent + unused - paid)


def _changed(state: State, terms: Terms, run_s: float, instructions: float) -> bool:
    """Whether the work has changed by more than chance, and by more than a write is worth."""
    rho = state.rho or RHO_UNKNOWN
    expected = rho * run_s
    worth = EARLY_S * terms.ips + EARLY_RATIO * expected + state.gift_s * rho
    return run_s >= RHO_RUN_LEAST_S and abs(instructions - expected) > worth


def _learned(
    state: State, work: Work, latest: Work, *, changed: bool
) -> tuple[float | None, float, float]:
    """``rho``, ``known_s`` and ``gift_s``: what it is and what the last write gave away."""
    rho, known_s, gift_s = state.rho, state.known_s, state.gift_s
    if changed or rho is None:
        seen = latest if latest.run_s >= RHO_RUN_LEAST_S else work
        if seen.run_s < RHO_RUN_LEAST_S or not seen.instructions:
            return rho, known_s, gift_s
        return seen.instructions / seen.run_s, seen.run_s, gift_s
    if state.held_s == 0.0 and work.demand_s > 0.9 * work.wall_s:  # just written
        gave_s = work.run_s - state.share * work.demand_s
        gift_s = max(0.0, gift_s + GIFT_WEIGHT * (gave_s - gift_s))
    if work.run_s < RHO_RUN_LEAST_S or not work.instructions:
        return rho, known_s, gift_s
    keep_s = min(known_s, RHO_MEMORY_S * state.share)
    known_s = keep_s + work.run_s
    return (rho * keep_s + work.instructions) / known_s, known_s, gift_s


def _decided(state: State, terms: Terms, wanted_ratio: float, *, changed: bool) -> State:
    """A new share if there is need of one, for a state that has been settled.

    ``wanted_ratio``: share of the time in which the vCPU wanted to run; what is owed is not paid
    back in the rest.
    """
    assert state.rho is not None
    forward = min(1.0, terms.ips / state.rho)
    hold_s = state.gift_s / (HOLD_RATIO * forward)
    if not changed and state.held_s < hold_s * 0.999:
        return state
    least_s = max(REPAY_S, terms.sp_s)
    repay_s = max(least_s * max(wanted_ratio, WANTED_LEAST_RATIO), hold_s)
    repay_ips = state.balance / repay_s + state.banked / least_s
    most = min(1.0, max(forward, terms.most_share))
    share = min(most, (terms.ips + repay_ips) / state.rho)
    least = forward * REPAY_LEAST_RATIO
    if share < least and state.share <= 2.0 * least:
        return state  # as low as it shall be, or close
    little = EARLY_S * terms.ips
    steady = not changed and abs(forward - state.forward) <= HYSTERESIS_RATIO * forward
    few = -little - EDGE_GIFTS * state.gift_s * state.rho <= state.balance <= little
    if steady and few and not state.banked:
        share = forward
    share = max(share, least)
    if abs(share - state.share) <= HYSTERESIS_RATIO * forward:
        return state
    return state._replace(share=share, forward=forward, held_s=0.0)


def moved(
    state: State, terms: Terms, work: Work | None, old: float | None, new: float | None
) -> State:
    """On another core type, with another limit: what it did until now is settled.

    ``old`` and ``new``: nominal Ips there, by which the vCPU's own are expected to change.
    """
    rho = state.rho
    if work is not None:
        untold_s, work = _told(state, work)
        balance, banked = _balanced(state, rho, terms, work)
        state = state._replace(untold_s=untold_s, balance=balance, banked=banked)
    if rho is not None and old is not None and new is not None:
        rho *= new / old
    return state._replace(rho=rho, known_s=0.0, held_s=0.0)


def _default(state: State, terms: Terms, work: Work, latest: Work) -> State:
    """Feed forward, with a carried balance."""
    changed = _changed(state, terms, work.run_s, work.instructions)
    untold_s, work = _told(state, work)
    rho, known_s, gift_s = _learned(state, work, latest, changed=changed)
    state = State(
        state.share,
        state.held_s + work.wall_s,
        rho,
        known_s,
        *_balanced(state, rho, terms, work),
        state.forward,
        gift_s,
        untold_s,
        state.printed,
    )
    if rho is None:  # it has not run yet
        return state
    return _decided(state, terms, work.demand_s / work.wall_s, changed=changed)


def _printed(state: State, terms: Terms, work: Work, *, decays: bool) -> State:
    """The published rule: ``act = (old * sp + ri) / (2 * sp)``, and under ``B`` it may run.

    ``old`` is 0 after a period in which the vCPU was blocked, unless it ``decays``.
    """
    before, was_blocked = state.printed
    act = (before * work.wall_s + work.instructions) / (2.0 * work.wall_s)
    blocked = act >= terms.ips
    old = 0.0 if was_blocked and not decays else act
    return state._replace(share=0.0 if blocked else 1.0, printed=(old, blocked))


CONTROLLERS: Mapping[str, Controller] = {
    "default": Controller(_changed, _default),
    "printed": Controller(lambda *_: False, lambda s, t, w, _: _printed(s, t, w, decays=False)),
    "printed-decay": Controller(
        lambda *_: False, lambda s, t, w, _: _printed(s, t, w, decays=True)
    ),
}
"""``printed``: ``old`` is zero if the vCPU was blocked during the previous sampling period, as the
text of the paper has it; ``printed-decay``: it decays through blocked periods, as the formula alone
has it. Neither holds a booking: a vCPU that would retire ``R`` gets a third (a sixth) of ``R`` or
more however little it books, and up to a sixth too little where it books nearly all."""
