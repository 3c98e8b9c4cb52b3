"""When to make the kernel charge a vCPU for its CPU time, so that a small limit is kept exactly.

The kernel looks at its timer tick, every 4 ms on most machines, whether a quota is used up; what
was overrun is taken from later periods. A small booking so gets its share on average, but in
lumps: of 50 ms in a second a tick is 8 %. And a limit that is written anew forgives what was
overrun. Charged at the moment when its quota ends, a vCPU stops there.

That moment is known: a vCPU that its limit stops has run since a period began, and periods begin
evenly. So one look a period suffices. What is not known at first, when periods begin and what the
vCPU has left, is found by looking often, for one period.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from amp_nova.core.capacity import QUOTA_MIN_US, Bandwidth
from amp_nova.core.observation import VcpuKey

MS = 1_000_000
SHARE_MAX = 0.15
"""Limits up to this share of a pCPU are small: of more than that, ticks are less than 3 %."""
MARGIN_NS = 50_000
"""A look comes so much later than the quota ends: one that comes too early changes nothing."""
PROBE_NS = MS
"""Time between two looks for the begin of a period."""
STEP_NS = 300_000
"""Time between two looks for the end of a quota."""
LATE_NS = 400_000
"""An overrun by more than this, a late look apart, shows that something was not as thought."""
GREW_NS = 30_000
"""A vCPU whose CPU time grew by less than this between two looks did not run."""
TRIES_MAX = 4
"""Looks in vain for one thing, after which the vCPU is left alone for a while."""
ANEW_EVERY = 3
"""So many misses until it is also doubted when periods begin: to find that out takes most looks."""
REST_MAX = 16
"""The longest while, in periods."""
BINDS_RATIO = 0.5
"""A limit that stops its vCPU for less of the time that it could hardly matters to it."""
KEEP_NS = 5_000 * MS
"""A vCPU whose limit has not mattered for so long is not charged."""


class Mode(enum.Enum):
    """What the next look is for."""

    PERIOD = "when periods begin"
    END = "where the quota ends"
    FOLLOW = "to charge at the end"


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen right after a vCPU was charged: CPU time, periods begun and, where they are
    asked for, instructions so far."""

    time_ns: int
    run_ns: int
    periods: int
    instructions: int = 0


@dataclass(frozen=True, slots=True)
class Track:
    """What is known of one vCPU.

    ``due_ns``: when to look next. ``begin_ns``: when the period of that look begins. ``end_ns``:
    CPU time at which the quota of that period is used up. ``stopped``: whether it was stopped there
    at the last look. ``tries``: looks for the same thing so far; ``misses``: periods in which it
    was not found.
    """

    limit: Bandwidth
    due_ns: int = 0
    mode: Mode = Mode.PERIOD
    last: Look | None = None
    begin_ns: int = 0
    end_ns: int = 0
    stopped: bool = False
    ran: bool = False
    """Whether it was seen to run while the end of its quota is looked for."""
    full: bool = False
    """Whether it did not use its last quota up, and so has a whole one as a period begins."""
    tries: int = 0
    misses: int = 0

    @property
    def quota_ns(self) -> int:
        """CPU time in one period."""
        return self.limit.quota_us * 1000

    @property
    def period_ns(self) -> int:
        """Length of a period."""
        return self.limit.period_us * 1000


def limited(track: Track, limit: Bandwidth, now_ns: int) -> Track:
    """The track when another limit was written: a write refills the quota, periods go on."""
    known = limit.period_us == track.limit.period_us and track.mode is not Mode.PERIOD
    return replace(
        track,
        limit=limit,
        mode=Mode.END if known else Mode.PERIOD,
        last=track.last if known else None,
        due_ns=now_ns,
        stopped=False,
        ran=False,
        full=False,
        tries=0,
        misses=0,
    )


def rest(track: Track, look: Look, wanted: Bandwidth) -> Bandwidth | None:
    """What a lower limit leaves of the period under way; ``None`` if that is no less than there is.

    All that the vCPU used in this period counts as used under the lower limit: it may have moved to
    a faster core type just before.
    """
    if track.mode is not Mode.FOLLOW or look.time_ns < track.begin_ns:
        return None
    left_ns = track.end_ns - look.run_ns
    used_us = (track.quota_ns - left_ns) // 1000
    rest_us = max(QUOTA_MIN_US, wanted.quota_us - used_us)
    if wanted.period_us != track.limit.period_us or rest_us * 1000 > left_ns - LATE_NS:
        return None
    return Bandwidth(rest_us, wanted.period_us)


def after(track: Track, look: Look) -> Track:
    """The track after a look: what was learnt, and when to look next."""
    last = track.last
    if last is None:
        return replace(track, last=look, due_ns=look.time_ns + PROBE_NS)
    return replace(_AFTER[track.mode](track, last, look), last=look)


def _missed(track: Track, look: Look, *, full: bool = False) -> Track:
    """It sleeps, or something is not as it was thought: after a rest it is all looked for anew."""
    rests = min(REST_MAX, 1 << min(track.misses, 8))
    mode = Mode.PERIOD if track.misses % ANEW_EVERY == ANEW_EVERY - 1 else track.mode
    due_ns = look.time_ns + rests * track.period_ns
    if mode is not Mode.PERIOD:
        mode, due_ns = Mode.END, due_ns - (look.time_ns - track.begin_ns) % track.period_ns
    return replace(
        track,
        mode=mode,
        due_ns=due_ns,
        begin_ns=due_ns,
        stopped=False,
        ran=False,
        full=full,
        tries=0,
        misses=track.misses + 1,
    )


def _find_period(track: Track, last: Look, look: Look) -> Track:
    """A period has begun since the last look: then was its begin, if that is not long ago."""
    apart_ns = look.time_ns - last.time_ns
    if look.periods != last.periods and apart_ns <= 2 * PROBE_NS:
        due_ns = look.time_ns + STEP_NS
        return replace(
            track, mode=Mode.END, begin_ns=look.time_ns, due_ns=due_ns, ran=False, tries=0
        )
    asleep = apart_ns > track.period_ns and look.run_ns == last.run_ns
    if asleep or track.tries * PROBE_NS > 1.5 * track.period_ns:
        return _missed(track, look)
    return replace(track, due_ns=look.time_ns + PROBE_NS, tries=track.tries + 1)


def _find_end(track: Track, last: Look, look: Look) -> Track:
    """It ran and has stopped: here its quota ended."""
    ran_ns = look.run_ns - last.run_ns
    if ran_ns >= GREW_NS and track.full:
        end_ns = look.run_ns + track.quota_ns - min(ran_ns, look.time_ns - track.begin_ns)
        due_ns = look.time_ns + end_ns - look.run_ns + MARGIN_NS
        return replace(track, mode=Mode.FOLLOW, end_ns=end_ns, due_ns=due_ns, full=False, tries=0)
    if ran_ns >= GREW_NS:
        return replace(track, due_ns=look.time_ns + STEP_NS, ran=True, tries=0)
    if track.tries < TRIES_MAX:
        return replace(track, due_ns=look.time_ns + STEP_NS, tries=track.tries + 1)
    return _stopped(replace(track, end_ns=look.run_ns), look) if track.ran else _missed(track, look)


def _stopped(track: Track, look: Look) -> Track:
    """It has stopped at its quota's end: the next period's end is when to look."""
    begin_ns, end_ns = track.begin_ns, track.end_ns
    while True:
        begin_ns += track.period_ns
        end_ns += track.quota_ns
        due_ns = begin_ns + end_ns - look.run_ns + MARGIN_NS
        if end_ns > look.run_ns and due_ns > look.time_ns:  # else all of it is owed already
            break
    return replace(
        track,
        mode=Mode.FOLLOW,
        begin_ns=begin_ns,
        end_ns=end_ns,
        due_ns=due_ns,
        stopped=True,
        tries=0,
    )


def _follow(track: Track, last: Look, look: Look) -> Track:
    """Whether it stopped where it was thought to."""
    over_ns, late_ns = look.run_ns - track.end_ns, look.time_ns - track.due_ns
    ran_ns = look.run_ns - last.run_ns
    if track.stopped:
        track = _begun(track, look.time_ns - ran_ns)
    if over_ns > LATE_NS + late_ns:  # it has more than was known
        due_ns = look.time_ns + STEP_NS
        return replace(track, mode=Mode.END, due_ns=due_ns, stopped=False, ran=True)
    if over_ns >= -GREW_NS:
        return _stopped(replace(track, misses=track.misses // 2), look)
    again_ns = look.time_ns - over_ns + MARGIN_NS
    if ran_ns < GREW_NS:  # others run, or it sleeps, or it was stopped before
        if over_ns >= -LATE_NS and track.tries >= TRIES_MAX:
            return _stopped(replace(track, end_ns=look.run_ns), look)
        again_ns = max(again_ns, look.time_ns + (STEP_NS << track.tries))
    if track.tries < TRIES_MAX and again_ns < track.begin_ns + track.period_ns:
        return replace(track, due_ns=again_ns, stopped=False, tries=track.tries + 1)
    return _missed(track, look, full=over_ns < -LATE_NS)


def _begun(track: Track, began_ns: int) -> Track:
    return replace(track, begin_ns=put_right(track.begin_ns, began_ns))


def put_right(begin_ns: int, began_ns: int) -> int:
    """The begin of a period thought to be at ``begin_ns``: it ran without a break since
    ``began_ns``, or later.

    Later than thought may be the fault of others: that is believed little by little.
    """
    by_ns = began_ns - begin_ns
    return begin_ns + (by_ns if by_ns < 0 else min(by_ns, MS) // 16)


_AFTER = {Mode.PERIOD: _find_period, Mode.END: _find_end, Mode.FOLLOW: _follow}


@dataclass(frozen=True, slots=True)
class Small:
    """A small limit as read at ``time_ns``: time that it stopped its vCPU in all, and when last it
    did so most of the time."""

    share: float
    throttled_ns: int
    time_ns: int
    bound_ns: int | None = None


def seen(before: Small | None, share: float, throttled_ns: int, time_ns: int) -> Small:
    """A small limit as it is found.

    One that stops its vCPU now and then only is no matter: that gets what it wants all the same.
    """
    if before is None:
        return Small(share, throttled_ns, time_ns)
    stopped_ns = throttled_ns - before.throttled_ns
    binds = stopped_ns >= BINDS_RATIO * (1.0 - share) * (time_ns - before.time_ns) > 0
    return Small(share, throttled_ns, time_ns, time_ns if binds else before.bound_ns)


def chosen(known: Mapping[VcpuKey, Small], time_ns: int, most: int) -> list[VcpuKey]:
    """The vCPUs to charge: those that their limits kept from running lately, the smallest first."""
    lately = [
        (small.share, key)
        for key, small in known.items()
        if small.bound_ns is not None and time_ns - small.bound_ns <= KEEP_NS
    ]
    return [key for _, key in sorted(lately)[:most]]
