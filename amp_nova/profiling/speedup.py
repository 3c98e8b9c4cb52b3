"""How much faster a vCPU's own work is on one core type than on another, and how sure that is.

Time per instruction has a part that a faster core shortens and a part that it does not, waiting
for memory: on a core of type ``p``, ``1 / Ips(p) = core / coef(p) + memory``. Three estimators:

* ``ipc`` (kwon2011, section 2.1): who retires fewer instructions per CPU second than the
  calibration did on that type is taken to wait for memory. Work that is slow for other reasons
  fools it, as its authors say, so it is never very sure.
* ``misses`` (after saez2015, section 3, which feeds a model with IPC and last-level cache misses):
  the memory part of its cycles is misses x the cycles that a miss costs on that core type, which
  is learnt from the vCPUs that ran on two types.
* ``sampling``: the vCPU ran on both types in its present phase, and both rates were measured.

All three rest on the same readings, so weighting them together would count one piece of evidence
twice: the most certain one wins.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from amp_nova.model.topology import CoreType
from amp_nova.profiling.counter_windows import Behaviour, Sampled

SHARE_DOUBT_RATIO = 0.5
"""How unsure the share of time that a faster core shortens is, judged by instructions alone."""

MODEL_DOUBT_RATIO = 0.02
"""What a model's estimate is off by at the least: no model is as good as a measurement."""

AGE_SE_RATIO_PER_S = 0.05 / 3600
"""How much less a sampled rate says with every second that has passed since."""
AGE_MAX_S = 3600.0

MISS_CYCLES = 150.0
MISS_DOUBT_RATIO = 0.5
"""What a last-level cache miss costs on the slowest core type where nothing was learnt (a memory
of 80 ns, some of it hidden), and how unsure that is."""
SPREAD_RATIO = 0.1
SPREAD_LESSONS = 2
"""How much it is thought to differ between workloads of one platform, and how many lessons that
thought weighs."""
LESSONS_MAX = 256
LESSON_LEAST_RATIO = 0.1
"""A vCPU that waits for memory less than this share of its time teaches nothing about it."""

STEP_LEAST_RATIO = 0.01
"""A coefficient in force is left as it is for less."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio of speeds with its standard error, where it comes from and how old its input is.

    ``noise``: the part of the standard error by which it changes from one window to the next.
    """

    value: float
    se: float
    source: str
    age_s: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Miss:
    """Cycles that a last-level cache miss costs on one core type."""

    cycles: float
    se_ratio: float


@dataclass(frozen=True, slots=True)
class Platform:
    """What estimators need to know of a host: its core types and their misses, slowest first."""

    core_types: tuple[CoreType, ...]
    misses: tuple[Miss | None, ...]

    def coefficient(self, position: int) -> float | None:
        """Speed of a core type over the reference core."""
        return self.core_types[position].coefficient


def untaught(
    core_types: Sequence[CoreType],
    miss_cycles: float = MISS_CYCLES,
    se_ratio: float = MISS_DOUBT_RATIO,
) -> Platform:
    """A platform of which only the cost of a miss on the slowest type is thought to be known.

    In time it is the same on all types: coefficients are taken for ratios of clocks.
    """
    slowest = core_types[0].coefficient if core_types else None
    known = [
        Miss(miss_cycles * t.coefficient / slowest, se_ratio)
        if slowest is not None and t.coefficient is not None
        else None
        for t in core_types
    ]
    return Platform(tuple(core_types), tuple(known))


class Estimator(Protocol):
    """One way to tell how much faster a vCPU's work is on one core type than on another."""

    @property
    def source(self) -> str:
        """Its name."""
        ...

    def speedup(
        self, platform: Platform, seen: Behaviour, over: int, under: int, now_s: float
    ) -> Estimate | None:
        """Speed on the type at ``over`` over that at ``under``; ``None``: it cannot tell."""
        ...


def _from_core_share(share: float, at: float, over: float, under: float) -> tuple[float, float]:
    """Speed-up from the share of time that a faster core shortens, and its slope in that share.

    ``at``, ``over`` and ``under`` are coefficients: of the type the share was seen on, and those to
    compare.
    """
    share = min(1.0, max(0.0, share))
    longer_over, longer_under = at / over - 1.0, at / under - 1.0
    on_over, on_under = 1.0 + share * longer_over, 1.0 + share * longer_under
    slope = (longer_under * on_over - longer_over * on_under) / on_over**2
    return on_under / on_over, abs(slope)


def _three(platform: Platform, at: int, over: int, under: int) -> tuple[float, float, float] | None:
    """Three coefficients, ``None`` when one is not known."""
    known = [c for p in (at, over, under) if (c := platform.coefficient(p)) is not None]
    return (known[0], known[1], known[2]) if len(known) == 3 else None


@dataclass(frozen=True, slots=True)
class IpcModel:
    """From instructions per CPU second alone, against the calibration's."""

    source: str = "ipc"

    def speedup(
        self, platform: Platform, seen: Behaviour, over: int, under: int, now_s: float
    ) -> Estimate | None:
        """See ``Estimator``."""
        now, at = seen.now, seen.position
        if now is None or at is None or (among := _three(platform, at, over, under)) is None:
            return None
        nominal_ips = platform.core_types[at].nominal_ips
        if nominal_ips is None:
            return None
        share = now.ips.value / nominal_ips
        value, slope = _from_core_share(share, *among)
        noise = slope * min(1.0, share) * now.ips.se_ratio
        se = math.hypot(slope * SHARE_DOUBT_RATIO, noise)
        return Estimate(value, se, self.source, now_s - now.at_s, noise)


@dataclass(frozen=True, slots=True)
class MissModel:
    """From cycles and last-level cache misses."""

    source: str = "misses"

    def speedup(
        self, platform: Platform, seen: Behaviour, over: int, under: int, now_s: float
    ) -> Estimate | None:
        """See ``Estimator``."""
        now, at = seen.now, seen.position
        if now is None or at is None or (among := _three(platform, at, over, under)) is None:
            return None
        counted, miss = now.misses_per_cycle, platform.misses[at]
        if counted is None or miss is None:
            return None
        memory = min(1.0, counted.value * miss.cycles)
        value, slope = _from_core_share(1.0 - memory, *among)
        noise = slope * memory * counted.se_ratio
        se = math.hypot(slope * memory * miss.se_ratio, noise, value * MODEL_DOUBT_RATIO)
        return Estimate(value, se, self.source, now_s - now.at_s, noise)


def _age_s(sampled: Sampled, now_s: float) -> float:
    return max(0.0, now_s - sampled.at_s)


@dataclass(frozen=True, slots=True)
class Sampling:
    """From the rates on both types, where the vCPU ran on both lately."""

    source: str = "sampling"

    def speedup(
        self, platform: Platform, seen: Behaviour, over: int, under: int, now_s: float
    ) -> Estimate | None:
        """See ``Estimator``."""
        del platform  # measured, not modelled
        fast, slow = seen.types[over], seen.types[under]
        if fast is None or slow is None:
            return None
        age_s = max(_age_s(fast, now_s), _age_s(slow, now_s))
        if age_s > AGE_MAX_S:
            return None
        value = fast.ips.value / slow.ips.value
        noise = value * math.hypot(fast.ips.se_ratio, slow.ips.se_ratio)
        se = math.hypot(noise, value * age_s * AGE_SE_RATIO_PER_S)
        return Estimate(value, se, self.source, age_s, noise)


ESTIMATORS: tuple[Estimator, ...] = (Sampling(), MissModel(), IpcModel())


def speedup(
    platform: Platform,
    seen: Behaviour,
    over: int,
    under: int,
    now_s: float,
    estimators: Iterable[Estimator] = ESTIMATORS,
) -> Estimate | None:
    """The most certain estimate there is; ``None``: nothing tells."""
    made = (e.speedup(platform, seen, over, under, now_s) for e in estimators)
    return min((e for e in made if e is not None), key=lambda e: e.se, default=None)


def shrunk(estimate: Estimate, coefficient: float) -> float:
    """An estimate drawn toward the hardware's coefficient by how unsure it is, and bounded.

    A speed-up that may be anything from 1 to ``coefficient`` is, in the mean square,
    ``(coefficient - 1)^2 / 3`` from it: that is what believing the hardware alone would cost, to
    be weighed against the estimate's own squared error. Bounded to what lies between 1 and
    ``coefficient``, either way round.
    """
    doubt = (coefficient - 1.0) ** 2 / 3.0
    if doubt == 0.0:
        return coefficient
    value = coefficient + (estimate.value - coefficient) * doubt / (doubt + estimate.se**2)
    low, high = sorted((1.0, coefficient))
    return min(high, max(low, value))


def own_coefficient(
    platform: Platform, seen: Behaviour, position: int, base: int, now_s: float
) -> tuple[float, Estimate] | None:
    """A vCPU's own coefficient of a core type, and the estimate it rests on.

    ``base`` is the core type on which the hardware's coefficient counts as it is: the reference
    core or, where that is another machine's, the slowest one here. ``None``: nothing tells.
    """
    ours, theirs = platform.coefficient(position), platform.coefficient(base)
    if ours is None or theirs is None or position == base:
        return None
    found = speedup(platform, seen, position, base, now_s)
    return None if found is None else (theirs * shrunk(found, ours / theirs), found)


def drift(
    platform: Platform, behaviours: Iterable[Behaviour], position: int, now_s: float
) -> float | None:
    """Speed-up that guests show on a core type over the slowest, over what coefficients say.

    The median over those that ran on both types lately and do not wait for memory, as far as
    misses tell; above 1 the calibration is out of date for sure, well below 1 it may be. ``None``
    where nothing tells. ``platform`` must not be one that was taught by these coefficients.
    """
    ours, theirs = platform.coefficient(position), platform.coefficient(0)
    if ours is None or theirs is None or position == 0:
        return None
    ratios = []
    for known in behaviours:
        found = Sampling().speedup(platform, known, position, 0, now_s)
        if found is not None and _computes(platform, known, position):
            ratios.append(found.value * theirs / ours)
    return median(ratios) if ratios else None


def _computes(platform: Platform, known: Behaviour, position: int) -> bool:
    """Whether a vCPU waits little for memory on a core type; taken for granted if not counted."""
    sampled, miss = known.types[position], platform.misses[position]
    if sampled is None or sampled.misses_per_cycle is None or miss is None:
        return True
    return sampled.misses_per_cycle.value * miss.cycles < LESSON_LEAST_RATIO


def step(in_force: float, wanted: float, noise: float) -> float:
    """The coefficient to go by from now on: a new one only when the change is more than noise.

    Every change is a write of a quota, which gives the guest a fresh one on a real host.
    """
    enough = max(STEP_LEAST_RATIO * in_force, 2.0 * noise)
    return wanted if abs(wanted - in_force) > enough else in_force


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one vCPU that ran on two types says about the cost of a miss on each, in cycles."""

    over: int
    under: int
    over_cycles: float
    under_cycles: float


def lesson(platform: Platform, seen: Behaviour, over: int, under: int) -> Lesson | None:
    """Learn from a vCPU that ran on two types, ``None`` where it has too little memory time.

    With ``r`` the ratio of the coefficients and ``s`` that of its rates, the share of memory in its
    time is ``(r - s) / (r - 1)`` on the faster type and ``1/s`` of that on the slower one.
    """
    fast, slow = seen.types[over], seen.types[under]
    among = _three(platform, over, over, under)
    if fast is None or slow is None or among is None or among[1] <= among[2]:
        return None
    ratio, gain = among[1] / among[2], fast.ips.value / slow.ips.value
    memory = min(1.0, (ratio - gain) / (ratio - 1.0))
    on_fast, on_slow = fast.misses_per_cycle, slow.misses_per_cycle
    if memory < LESSON_LEAST_RATIO or on_fast is None or on_slow is None:
        return None
    if not on_fast.value or not on_slow.value:
        return None
    on_under = memory / gain
    return Lesson(over, under, memory / on_fast.value, on_under / on_slow.value)


def taught(prior: Platform, lessons: Iterable[Lesson]) -> Platform:
    """A platform after some lessons: the mean cost of a miss, and how it differs by workload."""
    cycles: dict[int, list[float]] = {}
    for one in lessons:
        cycles.setdefault(one.over, []).append(one.over_cycles)
        cycles.setdefault(one.under, []).append(one.under_cycles)
    misses = list(prior.misses)
    for position, costs in cycles.items():
        count = len(costs)
        mean = math.fsum(costs) / count
        scatter = math.fsum((c / mean - 1.0) ** 2 for c in costs)
        spread = (SPREAD_LESSONS * SPREAD_RATIO**2 + scatter) / (SPREAD_LESSONS + count)
        misses[position] = Miss(mean, math.sqrt(spread * (1.0 + 1.0 / count)))
    return Platform(prior.core_types, tuple(misses))
