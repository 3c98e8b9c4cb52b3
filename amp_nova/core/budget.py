"""How much CPU time to give a vCPU, and when, so that it retires just the instructions it booked.

A limit of CPU time holds a booking of Ips as far as the instructions of the next CPU second are
known. They change by themselves, from one millisecond to the next: caches are cold after a stop,
the sibling thread of the core works or does not. A large booking averages that; of a small one,
which has a few milliseconds in a period, it is several per cent of every second.

So the budget of a period is given in portions. When one is used up, what is left of the budget is
known to the instruction, and how fast the vCPU is at present; the last portion is small, and little
is left to guess. The kernel grants a quota when it is written, and once more as the next period
begins: so the last portion of a period is the first one of the next.
"""

import enum
from dataclasses import dataclass, replace

from amp_nova.core.capacity import QUOTA_MIN_US, Bandwidth
from amp_nova.core.charge import GREW_NS, MARGIN_NS, MS, PROBE_NS, STEP_NS, Look, put_right

SHARE_MAX = 0.6
"""Limits up to this share of a pCPU are kept so: larger ones average enough by themselves."""
SHARE_LEAVE = 0.75
"""A vCPU that is given portions goes on with them up to this share."""
LONG_SHARE_MAX = 0.08
"""Limits up to this share have the longer period, so that a few portions fit into their quota."""
PERIOD_LONG_US = 100_000
PERIOD_SHORT_US = 50_000
"""A second that begins while a portion is being used knows less of it: shorter ones are better."""
QUOTA_MIN_NS = QUOTA_MIN_US * 1000
LAST_NS = 1_600_000
"""The last portion is to be so long: half as much again as the least that the kernel takes, since
what is left of the budget varies."""
LAST_RATIO = 0.25
"""And no less than this part of the budget: it is what a vCPU has if the agent dies."""
MOST_RATIO = 0.7
"""A portion of less than this part of the budget may be the first one of the next."""
FIRST_RATIO = 0.9
"""The first portion of all, as part of what the limit was: no period is lost while they are sought.
"""
WORTH_NS = QUOTA_MIN_NS // 2
"""A rest of less than this is left for the next period: it could give twice that only."""
PACE_WEIGHT = 0.2
"""Weight of the latest portion in what is usual."""
OFF_MAX = 1.7
"""A portion that is off by more than this factor is taken to be off by this: it is short, and the
more that chance has to say in it the more CPU time would be given for it."""
JUMP_RATIO = 0.3
"""A pace that is off by more than this has changed; one that is not may have by half of it."""
CARRY_LOST_RATIO = 0.2
"""The most of a budget that is carried when others, or the vCPU itself, kept it from being used."""
BUSY_RATIO = 0.75
"""Nobody did who ran for this part of the time: on a core that was too slow just now."""
CARRY_PERIODS = 1.0
"""The most budgets that are carried when portions fell short."""
LATEST_NS = 3 * MS
"""So long before a period ends no portion of it is waited for."""
START_NS = 150_000
"""The look comes so much later than a portion that is written now would be used up: a write takes
its time, and so does a vCPU to run. What it runs longer is counted; looking in vain costs more."""
SURE_NS = 20_000
"""A vCPU that has run for so much longer than its portion was stopped as it was charged."""
NEAR_NS = 100_000
"""One that has run for less than its portion by no more than this, and runs no longer, was so too.
"""
STUCK_TRIES = 4
"""After so many looks in vain, some 5 ms, no more is expected of the first portion."""
BACK_OFF_MAX = 4
"""Looks in vain are at most ``STEP_NS`` times two to the power of this apart."""
MISSES_MAX = 3
"""Periods in a row in which a budget was not used up, after which the vCPU is left alone."""


class Phase(enum.Enum):
    """Which portion is being used."""

    PERIOD = "none: when a period begins is looked for"
    FIRST = "the one that a period begins with"
    MAIN = "most of what was left then"
    LAST = "what was left after that"
    OVER = "none: the budget is not used up"


@dataclass(frozen=True, slots=True)
class Budget:
    """What is known of one vCPU, which books ``ips``.

    ``quota_ns``: the portion in force. ``end_ns``: CPU time at which it is used up.
    ``begin_ns`` and ``begin_run_ns``: when the period began, and CPU time then. ``aim``:
    instructions at which the period's budget is. ``pace``: instructions per nanosecond of CPU time,
    as usual; ``ratio``: how much faster the vCPU is just now. ``write``: whether ``quota_ns`` is to
    be written now.
    """

    ips: float
    period_ns: int
    quota_ns: int
    due_ns: int
    phase: Phase = Phase.PERIOD
    last: Look | None = None
    """As the portion began."""
    seen_ns: int = 0
    """CPU time at the last look."""
    begin_ns: int = 0
    begin_run_ns: int = 0
    end_ns: int = 0
    aim: float = 0.0
    pace: float | None = None
    ratio: float = 1.0
    write: bool = False
    tries: int = 0
    misses: int = 0

    @property
    def portion(self) -> Bandwidth:
        """The limit that gives the portion."""
        return Bandwidth(self.quota_ns // 1000, self.period_ns // 1000)

    @property
    def instructions(self) -> float:
        """Of one period."""
        return self.ips * self.period_ns / 1e9

    def cpu_ns(self, instructions: float) -> float:
        """CPU time that so many instructions are expected to take now."""
        return 0.0 if self.pace is None else instructions / (self.pace * self.ratio)


def begin(ips: float, limit: Bandwidth, now_ns: int) -> Budget:
    """Begin with a part of what the limit was until now; when periods begin is looked for then."""
    period_us = PERIOD_LONG_US if limit.cores <= LONG_SHARE_MAX else PERIOD_SHORT_US
    quota_us = max(QUOTA_MIN_US, round(FIRST_RATIO * limit.cores * period_us))
    return Budget(ips, period_us * 1000, quota_us * 1000, now_ns + PROBE_NS, write=True)


def after(budget: Budget, look: Look) -> Budget:
    """The budget after a look: what was learnt, what to write, and when to look next."""
    budget = replace(budget, write=False)
    last = budget.last
    if budget.phase is Phase.OVER:
        return budget
    if last is None:
        return replace(budget, last=look, seen_ns=look.run_ns, due_ns=look.time_ns + PROBE_NS)
    if look.instructions < last.instructions or look.run_ns < last.run_ns:  # of another life
        return replace(budget, phase=Phase.OVER)
    if budget.phase is Phase.PERIOD:
        return _find_period(budget, last, look)
    if not _used_up(budget, look) and not _stuck(budget, look):
        return _wait(budget, look)
    budget = _learned(budget, last, look)
    if budget.phase is Phase.LAST:
        return _next_period(replace(budget, misses=0), look)
    return _next_portion(budget, look)


def _find_period(budget: Budget, last: Look, look: Look) -> Budget:
    """A period has begun since the last look: the first budget is for it."""
    if look.periods == last.periods:
        tries = budget.tries + 1
        phase = Phase.OVER if tries * PROBE_NS > 1.5 * budget.period_ns else Phase.PERIOD
        due_ns = look.time_ns + PROBE_NS
        return replace(budget, last=look, phase=phase, due_ns=due_ns, tries=tries)
    budget = replace(
        budget,
        begin_ns=look.time_ns - budget.period_ns,
        end_ns=last.run_ns,
        aim=float(last.instructions),
    )
    return _next_period(budget, look)


def _used_up(budget: Budget, look: Look) -> bool:
    """Whether the portion is, and the vCPU was stopped for it: not if it was charged too early."""
    over_ns = look.run_ns - budget.end_ns
    return over_ns > SURE_NS or (over_ns > -NEAR_NS and look.run_ns - budget.seen_ns < GREW_NS)


def _stuck(budget: Budget, look: Look) -> bool:
    """Whether the first portion may be less than thought, for what was overrun before.

    Whatever keeps the vCPU, the next portion may be written: it takes the place of this one's rest.
    """
    still = look.run_ns - budget.seen_ns < GREW_NS
    return budget.phase is Phase.FIRST and still and budget.tries >= STUCK_TRIES


def _wait(budget: Budget, look: Look) -> Budget:
    """It has not used the portion up: others run, or it sleeps."""
    if look.time_ns > budget.begin_ns + budget.period_ns - LATEST_NS:
        return _missed(budget, look)
    if look.run_ns - budget.seen_ns >= GREW_NS:
        due_ns = look.time_ns + budget.end_ns - look.run_ns + MARGIN_NS
    else:
        due_ns = look.time_ns + (STEP_NS << min(budget.tries, BACK_OFF_MAX))
    due_ns = min(due_ns, budget.begin_ns + budget.period_ns - LATEST_NS + MARGIN_NS)
    return replace(budget, due_ns=due_ns, seen_ns=look.run_ns, tries=budget.tries + 1)


def _missed(budget: Budget, look: Look) -> Budget:
    """The budget is not used up, and little of it is carried: somebody else is to blame."""
    if budget.misses + 1 >= MISSES_MAX:
        return replace(budget, phase=Phase.OVER)
    ran_ns, took_ns = look.run_ns - budget.begin_run_ns, look.time_ns - budget.begin_ns
    ratio = CARRY_PERIODS if ran_ns > BUSY_RATIO * took_ns else CARRY_LOST_RATIO
    most = look.instructions + ratio * budget.instructions
    budget = replace(budget, aim=min(budget.aim, most), end_ns=look.run_ns)
    return _next_period(replace(budget, misses=budget.misses + 1), look)


def _learned(budget: Budget, last: Look, look: Look) -> Budget:
    """How fast it was in the portion that is used up."""
    ran_ns = look.run_ns - last.run_ns
    now = (look.instructions - last.instructions) / max(1, ran_ns)
    if ran_ns < GREW_NS or now <= 0.0:
        return budget
    usual = budget.pace or now
    off = min(max(1.0 / OFF_MAX, now / usual), OFF_MAX)
    before = 1.0 if budget.phase is Phase.FIRST else budget.ratio
    ratio = off if abs(off / before - 1.0) > JUMP_RATIO else (before + off) / 2.0
    return replace(budget, pace=usual * (1.0 + PACE_WEIGHT * (off - 1.0)), ratio=ratio)


def _next_portion(budget: Budget, look: Look) -> Budget:
    """What is left of the budget: most of it at once, unless little is."""
    rest_ns = budget.cpu_ns(budget.aim - look.instructions)
    whole_ns = budget.cpu_ns(budget.instructions)
    if rest_ns < WORTH_NS and budget.quota_ns < MOST_RATIO * whole_ns:
        return _next_period(replace(budget, misses=0), look)
    if budget.phase is Phase.FIRST:
        assert budget.last is not None
        began_ns = look.time_ns - (look.run_ns - budget.last.run_ns)
        budget = replace(budget, begin_ns=put_right(budget.begin_ns, began_ns))
        least_ns = max(LAST_NS, LAST_RATIO * whole_ns)
        if rest_ns - least_ns >= QUOTA_MIN_NS:
            return _given(budget, Phase.MAIN, rest_ns - least_ns, look)
    return _given(budget, Phase.LAST, rest_ns, look)


def _given(budget: Budget, phase: Phase, cpu_ns: float, look: Look) -> Budget:
    """The next portion, as much as the kernel takes."""
    quota_ns = round(min(max(QUOTA_MIN_NS, cpu_ns), budget.period_ns)) // 1000 * 1000
    return replace(
        budget,
        phase=phase,
        quota_ns=quota_ns,
        end_ns=look.run_ns + quota_ns,
        due_ns=look.time_ns + quota_ns + START_NS,
        last=look,
        seen_ns=look.run_ns,
        write=True,
        tries=0,
    )


def _next_period(budget: Budget, look: Look) -> Budget:
    """The next period's budget, which begins with the portion in force once more."""
    begun = max(1, (look.time_ns - budget.begin_ns) // budget.period_ns)
    begin_ns = budget.begin_ns + begun * budget.period_ns
    end_ns = budget.end_ns + begun * budget.quota_ns
    most = look.instructions + (1.0 + CARRY_PERIODS) * budget.instructions
    return replace(
        budget,
        phase=Phase.FIRST,
        begin_ns=begin_ns,
        begin_run_ns=look.run_ns,
        end_ns=end_ns,
        aim=min(budget.aim + begun * budget.instructions, most),
        due_ns=max(begin_ns, look.time_ns) + max(0, end_ns - look.run_ns) + 2 * MARGIN_NS,
        last=look,
        seen_ns=look.run_ns,
        ratio=1.0,
        tries=0,
    )
