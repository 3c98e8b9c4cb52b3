"""Controllers that hold a booking in instructions per second (teabe2017, solution 2).

A controller is told what a vCPU did since it was last told, and answers with the share of a pCPU
that it may use from now on. ``CONTROLLERS`` has the published rule in both readings of its text,
which does not hold a booking (see ``printed``), and the default.

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
from dataclasses import dataclass, replace

from amp_nova.core.capacity import PERIOD_MAX_US, PERIOD_MIN_US, QUOTA_MIN_US, Bandwidth

TICKS = 5
"""Looks per sampling period. A phase change is noticed within one look: at 20 ms, twice as many
instructions per CPU second cost 2 % of a second."""
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
"""Least time in which a balance is paid back."""
REPAY_LEAST_RATIO = 0.2
"""A vCPU that had too much keeps this part of what it would have."""
CARRY_S = 0.1
"""The most a limit may owe, as time of the booking."""
CARRY_LOST_S = 0.02
"""The most that is carried of what others took."""
OVERDRAFT_S = 1.0
"""The most a vCPU may have had too much, as time of the booking; more is forgiven."""
RHO_UNKNOWN = 1e10
"""Instructions per CPU second until they are known: more than cores have, so as to begin with less
than is booked rather than with more."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What one vCPU booked: instructions per second, and seconds of them that it may bank."""

    ips: float
    burst_s: float = 0.0
    sp_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Work:
    """What a vCPU did in some time: instructions, and the seconds they took."""

    wall_s: float = 0.0
    run_s: float = 0.0
    wait_s: float = 0.0
    instructions: float = 0.0

    @property
    def demand_s(self) -> float:
        """Time it wanted a pCPU."""
        return min(self.wall_s, self.run_s + self.wait_s)

    def plus(self, other: "Work") -> "Work":
        """Both, one after the other."""
        return Work(
            self.wall_s + other.wall_s,
            self.run_s + other.run_s,
            self.wait_s + other.wait_s,
            self.instructions + other.instructions,
        )


NOTHING = Work()


@dataclass(frozen=True, slots=True)
class State:
    """What a controller remembers of one vCPU.

    ``share``: of a pCPU, in force for ``held_s``. ``pending``: what the vCPU did since the last
    settlement. ``rho``: instructions per CPU second, seen over ``known_s`` of CPU time, ``None``
    before any were. ``balance``: instructions owed, negative when it had too many. ``banked``:
    those it may still have for time that it did not want. ``forward``: the share without either,
    when the limit was last written. ``gift_s``: CPU time that a write gives away.
    """

    share: float
    held_s: float = 0.0
    pending: Work = NOTHING
    rho: float | None = None
    known_s: float = 0.0
    balance: float = 0.0
    banked: float = 0.0
    forward: float = 0.0
    gift_s: float = 0.0
    act: float = 0.0
    """Of the printed rule: instructions per second as it sees them."""
    blocked: bool = False
    """Of the printed rule: whether the vCPU may not run in this sampling period."""


Control = Callable[[State, Terms, Work], State]
"""From what was, the terms, and what the vCPU did since: what is from now on."""


def limit(share: float) -> Bandwidth:
    """The bandwidth limit of a share.

    The shortest period whose quota the kernel takes, and no less than 20 ms: what a write gives
    away and how far samples cut into a period are least so.
    """
    period_us = PERIOD_MIN_US
    if share < QUOTA_MIN_US / PERIOD_MIN_US:
        period_us = min(PERIOD_MAX_US, round(QUOTA_MIN_US / max(share, 1e-9)))
    return Bandwidth(min(period_us, max(QUOTA_MIN_US, round(share * period_us))), period_us)


def first_share(ips: float, rho: float | None) -> float:
    """The share to begin with, when so many instructions per CPU second are to be expected."""
    return min(1.0, ips / (rho or RHO_UNKNOWN))


def _settled(state: State, terms: Terms) -> State:
    """Enter what is pending into the balance.

    Owed is the booking for the time the vCPU wanted to run. Time that it did not want pays what it
    had too much, and then fills the bank: so a burst within the booking costs nothing, as in the
    account (``account.owed``).
    """
    work = state.pending
    bound = state.share < 1.0 and work.run_s >= 0.9 * state.share * work.demand_s
    carry_s = CARRY_S if bound else CARRY_LOST_S if state.share < 1.0 else 0.0
    balance = state.balance + terms.ips * work.demand_s - work.instructions
    balance = min(balance, max(terms.ips * carry_s, state.balance), terms.ips * CARRY_S)
    unused = terms.ips * (work.wall_s - work.demand_s)
    paid = min(unused, max(0.0, -balance))
    balance += paid
    spent = min(state.banked, max(0.0, -balance))
    balance = max(balance + spent, -terms.ips * OVERDRAFT_S)
    banked = min(terms.ips * terms.burst_s, state.banked - spent + unused - paid)
    return replace(state, balance=balance, banked=banked, pending=NOTHING)


def _changed(state: State, terms: Terms, work: Work) -> bool:
    """Whether instructions per CPU second have changed by more than chance and a write are worth.

    ``work`` is the latest part of what is pending.
    """
    if work.run_s < RHO_RUN_LEAST_S:
        return False
    rho = state.rho or RHO_UNKNOWN
    expected = rho * state.pending.run_s
    stake = abs(state.pending.instructions - expected)
    return stake > EARLY_S * terms.ips + EARLY_RATIO * expected + state.gift_s * rho


def _learned(state: State, work: Work, *, changed: bool) -> State:
    """What is pending as knowledge of ``rho``, and of what the last write gave away."""
    pending = state.pending
    if changed or state.rho is None:
        seen = work if work.run_s >= RHO_RUN_LEAST_S else pending
        if seen.run_s < RHO_RUN_LEAST_S or not seen.instructions:
            return state
        return replace(state, rho=seen.instructions / seen.run_s, known_s=seen.run_s)
    gift_s = state.gift_s
    just_written = state.held_s <= pending.wall_s * 1.001
    if just_written and pending.demand_s > 0.9 * pending.wall_s:
        gave_s = pending.run_s - state.share * pending.demand_s
        gift_s = max(0.0, gift_s + GIFT_WEIGHT * (gave_s - gift_s))
    if pending.run_s < RHO_RUN_LEAST_S or not pending.instructions:
        return replace(state, gift_s=gift_s)
    keep_s = min(state.known_s, RHO_MEMORY_S * state.share)
    known_s = keep_s + pending.run_s
    rho = (state.rho * keep_s + pending.instructions) / known_s
    return replace(state, rho=rho, known_s=known_s, gift_s=gift_s)


def _decided(state: State, terms: Terms, *, changed: bool) -> State:
    """A new share if there is need of one, for a state that has been settled."""
    assert state.rho is not None
    forward = min(1.0, terms.ips / state.rho)
    hold_s = state.gift_s / (HOLD_RATIO * forward)
    if not changed and state.held_s < hold_s * 0.999:
        return state
    repay_ips = state.balance / max(REPAY_S, hold_s) + state.banked / REPAY_S
    share = min(1.0, (terms.ips + repay_ips) / state.rho)
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
    return replace(state, share=share, forward=forward, held_s=0.0)


def moved(state: State, terms: Terms, old: float | None, new: float | None) -> State:
    """On another core type, with another limit: what it did until now is settled.

    ``old`` and ``new``: nominal Ips there, by which the vCPU's own are expected to change.
    """
    state = _settled(state, terms)
    rho = state.rho
    if rho is not None and old is not None and new is not None:
        rho *= new / old
    return replace(state, rho=rho, known_s=0.0, held_s=0.0)


def default(state: State, terms: Terms, work: Work) -> State:
    """Feed forward, with a carried balance."""
    held_s = state.held_s + work.wall_s
    state = replace(state, pending=state.pending.plus(work), held_s=held_s)
    changed = _changed(state, terms, work)
    if not changed and state.pending.wall_s < terms.sp_s * 0.999:
        return state
    state = _learned(state, work, changed=changed)
    if state.rho is None:  # it has not run yet
        return replace(state, pending=NOTHING)
    return _decided(_settled(state, terms), terms, changed=changed)


def _printed(state: State, terms: Terms, work: Work, *, decays: bool) -> State:
    pending = state.pending.plus(work)
    if pending.wall_s < terms.sp_s * 0.999:
        return replace(state, pending=pending)
    act = (state.act * pending.wall_s + pending.instructions) / (2.0 * pending.wall_s)
    blocked = act >= terms.ips
    share = 0.0 if blocked else 1.0
    # What the next period starts from; this one was blocked if the state says so.
    old = 0.0 if state.blocked and not decays else act
    return replace(state, share=share, act=old, blocked=blocked, pending=NOTHING)


def printed(state: State, terms: Terms, work: Work) -> State:
    """The rule as published: ``act = (old * sp + ri) / (2 * sp)``, and under ``B`` it may run.

    ``old`` is zero if the vCPU was blocked during the previous sampling period. It does not hold a
    booking: a vCPU that would retire ``R`` gets 1/3 of ``R`` at most bookings below a quarter of
    it, and a sixth too little at those close to it.
    """
    return _printed(state, terms, work, decays=False)


def printed_decay(state: State, terms: Terms, work: Work) -> State:
    """The same rule where ``old`` decays through blocked periods, as the formula alone has it."""
    return _printed(state, terms, work, decays=True)


CONTROLLERS: Mapping[str, Control] = {
    "default": default,
    "printed": printed,
    "printed-decay": printed_decay,
}
