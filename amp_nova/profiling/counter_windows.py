# SPDX-License-Identifier: Apache-2.0
"""Counter windows: a vCPU's counter profile, smoothed window by window, per core type.

As in kwon2011 section 3.1, counters are read over a window of 2.0 s in every interval of 2.5 s. An
IPC that differs by more than 15 % from the current one replaces it only if the change persists for
two consecutive intervals. Here such a change also starts a new phase: what was measured before it,
on any core type, no longer counts.

A vCPU that changes its core type and its phase at about the same time shows no such change. But the
same work has about as many last-level cache misses per instruction on every core type, and with
other work there, what was measured on the other types does not count either.
"""

import math

from msgspec import Struct, structs

from amp_nova.model.observation import VcpuReading

WINDOW_S = 2.0
INTERVAL_S = 2.5
THRESHOLD_RATIO = 0.15
MISSES_DIFFER_RATIO = 0.5
"""Misses per instruction that differ by more than this part of the greater are of other work."""
MISSES_MIN_PER_CYCLE = 0.0005
"""With fewer misses on both core types the work hardly waits for memory on either."""
RUN_MIN_S = 0.005
"""A window in which the vCPU ran for less than this is discarded."""
NOISE_RATIO = 0.03
"""Assumed error of a single window; the observed scatter of the windows soon outweighs it."""
WINDOWS_MAX = 20
"""A mean goes back at most this many windows, so that it follows slow drift."""


class CounterWindow(Struct, frozen=True):
    """What one vCPU did in one sampling window, all of it on cores of one type."""

    wall_s: float
    run_s: float
    instructions: int
    cycles: int | None = None
    cache_misses: int | None = None

    @property
    def ips(self) -> float:
        """Instructions per second of CPU time."""
        return self.instructions / self.run_s

    @property
    def ipc(self) -> float | None:
        """Instructions per cycle while it ran; ``None``: cycles are not counted."""
        return self.instructions / self.cycles if self.cycles else None

    @property
    def misses_per_cycle(self) -> float | None:
        """Last-level cache misses per cycle while it ran; ``None``: one of them is not counted."""
        misses = self.cache_misses
        return misses / self.cycles if self.cycles and misses is not None else None

    @property
    def utilization_ratio(self) -> float:
        """Share of the window in which it ran, 0 to 1."""
        return min(1.0, self.run_s / self.wall_s)


def window(before: VcpuReading, after: VcpuReading, wall_ns: int) -> CounterWindow | None:
    """The difference of two readings that are ``wall_ns`` apart.

    ``None`` if instructions are not counted, a counter or the clock went backwards, or the vCPU ran
    for less than ``RUN_MIN_S``.
    """
    was, now = before.counts, after.counts
    run_s = (after.run_ns - before.run_ns) / 1e9
    if was is None or now is None or wall_ns <= 0 or run_s < RUN_MIN_S:
        return None
    instructions = now.instructions - was.instructions
    cycles = _difference(was.cycles, now.cycles)
    misses = _difference(was.cache_misses, now.cache_misses)
    if instructions <= 0 or (cycles or 0) < 0 or (misses or 0) < 0:
        return None
    return CounterWindow(wall_ns / 1e9, run_s, instructions, cycles, misses)


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


class Smoothed(Struct, frozen=True):
    """A value that follows a large change only if it persists."""

    value: float
    unconfirmed: float | None = None
    """The last measurement, if it was a large change."""


def _is_near(one: float, other: float) -> bool:
    """Whether ``one`` is within 15 % of ``other``."""
    return abs(one - other) <= THRESHOLD_RATIO * abs(other)


def smooth(before: Smoothed | None, measured: float) -> Smoothed:
    """Accept a change of up to 15 % at once, a larger one if two intervals in a row agree.

    The smoothing of kwon2011 section 3.2.
    """
    if before is None or _is_near(measured, before.value):
        return Smoothed(measured)
    if before.unconfirmed is not None and _is_near(measured, before.unconfirmed):
        return Smoothed(measured)
    return Smoothed(before.value, measured)


class Mean(Struct, frozen=True):
    """A mean over windows; ``scatter`` is the sum of the squared relative deviations."""

    value: float
    windows: int = 1
    scatter: float = 0.0

    @property
    def se_ratio(self) -> float:
        """The standard error of the mean, relative to it."""
        return math.sqrt(NOISE_RATIO**2 + self.scatter) / self.windows

    def add(self, measured: float) -> "Mean":
        """The mean with one more window; the oldest windows fade."""
        windows = min(self.windows + 1, WINDOWS_MAX)
        fades = (windows - 1) / self.windows
        off = (measured - self.value) / self.value if self.value else 0.0
        scatter = self.scatter * fades + off * off * (windows - 1) / windows
        return Mean(self.value + (measured - self.value) / windows, windows, scatter)


class TypeProfile(Struct, frozen=True):
    """A vCPU on one core type, since its current phase began."""

    pace: Smoothed
    """IPC, or instructions per CPU second if cycles are not counted."""
    anchor: float
    """The pace at which the vCPU came to this core type: a phase ends 15 % away from it."""
    ips: Mean
    """Instructions per second of CPU time."""
    at_s: float
    """When it was last measured."""
    counts_cycles: bool = False
    misses_per_cycle: Mean | None = None

    @property
    def ipc(self) -> float | None:
        """Smoothed instructions per cycle; ``None``: cycles are not counted."""
        return self.pace.value if self.counts_cycles else None


class CounterProfile(Struct, frozen=True):
    """A vCPU on every core type, as its counters show it in its current phase."""

    types: tuple[TypeProfile | None, ...]
    """By core type, slowest first; ``None``: not measured in this phase."""
    position: int | None = None
    """Position of the core type of the last window."""
    utilization_ratio: float | None = None
    """Share of the last window in which it ran."""

    @property
    def now(self) -> TypeProfile | None:
        """The profile on the core type of the last window."""
        return None if self.position is None else self.types[self.position]

    @property
    def score(self) -> float | None:
        """The fast-core efficiency of kwon2011: IPC x utilization."""
        now, busy = self.now, self.utilization_ratio
        ipc = now.ipc if now else None
        return None if ipc is None or busy is None else ipc * busy


def _first(window: CounterWindow, at_s: float) -> TypeProfile:
    ips, ipc, misses = window.ips, window.ipc, window.misses_per_cycle
    pace = ips if ipc is None else ipc
    return TypeProfile(
        Smoothed(pace),
        pace,
        Mean(ips),
        at_s,
        ipc is not None,
        None if misses is None else Mean(misses),
    )


def with_window(
    before: CounterProfile, position: int, window: CounterWindow, at_s: float
) -> CounterProfile:
    """The profile with one more window, measured on the core type at ``position``."""
    types, old, new, ipc = before.types, before.types[position], None, window.ipc
    if old is not None and old.counts_cycles == (ipc is not None):
        pace = smooth(old.pace, window.ips if ipc is None else ipc)
        anchor = old.anchor if position == before.position else old.pace.value
        if pace.unconfirmed is not None:
            new = structs.replace(old, pace=pace, anchor=anchor)
        elif _is_near(pace.value, anchor):
            new = _continued(old, window, pace, anchor, at_s)
        else:  # a new phase
            types = (None,) * len(types)
    now = new or _first(window, at_s)
    others = [None if t is None or _is_other_work(t, window) else t for t in types]
    types = (*others[:position], now, *others[position + 1 :])
    return CounterProfile(types, position, window.utilization_ratio)


def _is_other_work(profile: TypeProfile, window: CounterWindow) -> bool:
    """Whether cache misses tell that a window shows other work than a profile of another type."""
    were, are = profile.misses_per_cycle, window.misses_per_cycle
    was_ipc, ipc = profile.ipc, window.ipc
    if were is None or are is None or not was_ipc or not ipc:
        return False
    if max(were.value, are) < MISSES_MIN_PER_CYCLE:
        return False
    before, after = were.value / was_ipc, are / ipc
    return abs(after - before) > MISSES_DIFFER_RATIO * max(before, after)


def _continued(
    old: TypeProfile, window: CounterWindow, pace: Smoothed, anchor: float, at_s: float
) -> TypeProfile:
    misses, more = old.misses_per_cycle, window.misses_per_cycle
    if misses is not None and more is not None:
        misses = misses.add(more)
    return TypeProfile(pace, anchor, old.ips.add(window.ips), at_s, old.counts_cycles, misses)
