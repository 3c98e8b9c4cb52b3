"""How a vCPU behaves on each core type: what its counters said, window by window, smoothed.

As kwon2011 (section 3.1): counters are read over a window of 2.0 s in every interval of 2.5 s, and
an IPC that differs by more than 15 % from the current one replaces it only when the change holds
for two consecutive intervals. Here that change also begins a new phase: what was measured before
it, on whatever core type, says nothing any more.
"""

import math
from dataclasses import dataclass, replace

from amp_nova.model.observation import VcpuReading, usage

WINDOW_S = 2.0
INTERVAL_S = 2.5
THRESHOLD_RATIO = 0.15
RUN_LEAST_S = 0.005
"""A window in which the vCPU ran less than this says nothing about how it runs."""

NOISE_RATIO = 0.03
"""What one window alone is thought to be off by; the windows' own scatter soon outweighs it."""
WINDOWS_MAX = 20
"""How many windows a mean goes back, so that slow drift is followed."""


@dataclass(frozen=True, slots=True)
class Window:
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
        """Instructions per cycle while it ran; ``None`` where cycles are not counted."""
        return self.instructions / self.cycles if self.cycles else None

    @property
    def misses_per_cycle(self) -> float | None:
        """Last-level cache misses per cycle while it ran; ``None`` where not both are counted."""
        misses = self.cache_misses
        return misses / self.cycles if self.cycles and misses is not None else None

    @property
    def utilization_ratio(self) -> float:
        """Share of the window in which it ran."""
        return min(1.0, self.run_s / self.wall_s)


def window(before: VcpuReading, after: VcpuReading, wall_ns: int) -> Window | None:
    """The difference of two readings; ``None`` when it says nothing.

    That is when nothing counts, a counter or the clock went back, or the vCPU hardly ran.
    """
    used, was, now = usage(before, after, wall_ns), before.counts, after.counts
    if used is None or was is None or now is None or used.run_s < RUN_LEAST_S:
        return None
    instructions = now.instructions - was.instructions
    cycles = _difference(was.cycles, now.cycles)
    misses = _difference(was.cache_misses, now.cache_misses)
    if instructions <= 0 or (cycles or 0) < 0 or (misses or 0) < 0:
        return None
    return Window(used.wall_s, used.run_s, instructions, cycles, misses)


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


@dataclass(frozen=True, slots=True)
class Smoothed:
    """A value that believes a great change only when it holds. ``doubted``: the change, so far."""

    value: float
    doubted: float | None = None


def alike(one: float, other: float) -> bool:
    """Whether ``one`` is within 15 % of ``other``."""
    return abs(one - other) <= THRESHOLD_RATIO * abs(other)


def smooth(before: Smoothed | None, measured: float) -> Smoothed:
    """The smoothing of kwon2011: up to 15 % at once, more when two intervals in a row agree."""
    if before is None or alike(measured, before.value):
        return Smoothed(measured)
    if before.doubted is not None and alike(measured, before.doubted):
        return Smoothed(measured)
    return Smoothed(before.value, measured)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over windows; ``scatter`` is the sum of the squares of relative deviations."""

    value: float
    windows: int = 1
    scatter: float = 0.0

    @property
    def se_ratio(self) -> float:
        """Its standard error, as a share of it."""
        return math.sqrt(NOISE_RATIO**2 + self.scatter) / self.windows

    def add(self, measured: float) -> "Mean":
        """The mean with one window more, and the oldest ones fading."""
        windows = min(self.windows + 1, WINDOWS_MAX)
        fades = (windows - 1) / self.windows
        off = (measured - self.value) / self.value if self.value else 0.0
        scatter = self.scatter * fades + off * off * (windows - 1) / windows
        return Mean(self.value + (measured - self.value) / windows, windows, scatter)

    def afresh(self, measured: float) -> "Mean":
        """A new mean that begins as noisy as this one was."""
        return Mean(measured, scatter=self.scatter / self.windows)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A vCPU on one core type, since its present phase began.

    ``pace`` is its smoothed IPC, or instructions per CPU second where no cycles are counted;
    ``anchor`` what it was when the vCPU came to this type.
    """

    pace: Smoothed
    anchor: float
    ips: Mean
    at_s: float
    counts_cycles: bool = False
    misses_per_cycle: Mean | None = None

    @property
    def ipc(self) -> float | None:
        """Smoothed instructions per cycle, ``None`` where cycles are not counted."""
        return self.pace.value if self.counts_cycles else None


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A vCPU on every core type, slowest type first; ``position``: the type it ran on last."""

    types: tuple[Sampled | None, ...]
    position: int | None = None
    utilization_ratio: float | None = None

    @property
    def now(self) -> Sampled | None:
        """The type it ran on last."""
        return None if self.position is None else self.types[self.position]

    @property
    def score(self) -> float | None:
        """The fast-core efficiency of kwon2011: IPC x utilization."""
        ipc = self.now.ipc if self.now else None
        busy = self.utilization_ratio
        return None if ipc is None or busy is None else ipc * busy


def _first(seen: Window, at_s: float) -> Sampled:
    pace = seen.ips if seen.ipc is None else seen.ipc
    misses = seen.misses_per_cycle
    return Sampled(
        Smoothed(pace),
        pace,
        Mean(seen.ips),
        at_s,
        seen.ipc is not None,
        None if misses is None else Mean(misses),
    )


def _afresh(old: Sampled, fresh: Sampled) -> Mean | None:
    before, now = old.misses_per_cycle, fresh.misses_per_cycle
    return now if before is None or now is None else before.afresh(now.value)


def learn(before: Behaviour, position: int, seen: Window, at_s: float) -> Behaviour:
    """Enter one window on the core type at ``position``."""
    busy = seen.utilization_ratio
    old = before.types[position]
    fresh = _first(seen, at_s)
    if old is None or old.counts_cycles != fresh.counts_cycles:
        return Behaviour(_with(before.types, position, fresh), position, busy)
    pace = smooth(old.pace, fresh.pace.value)
    anchor = old.anchor if position == before.position else old.pace.value
    if pace.doubted is not None:
        kept = replace(old, pace=pace, anchor=anchor)
        return Behaviour(_with(before.types, position, kept), position, busy)
    if not alike(pace.value, anchor):
        begun = replace(fresh, ips=old.ips.afresh(seen.ips), misses_per_cycle=_afresh(old, fresh))
        alone = _with((None,) * len(before.types), position, begun)
        return Behaviour(alone, position, busy)
    misses, more = old.misses_per_cycle, seen.misses_per_cycle
    if misses is not None and more is not None:
        misses = misses.add(more)
    ips = old.ips.add(seen.ips)
    grown = Sampled(pace, anchor, ips, at_s, old.counts_cycles, misses)
    return Behaviour(_with(before.types, position, grown), position, busy)


def _with(
    types: tuple[Sampled | None, ...], position: int, sampled: Sampled
) -> tuple[Sampled | None, ...]:
    return (*types[:position], sampled, *types[position + 1 :])
