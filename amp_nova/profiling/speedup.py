# SPDX-License-Identifier: Apache-2.0
"""How much faster a vCPU's own work is on one core type than on another, with a standard error.

The time per instruction has a part that a faster core shortens and a part that it does not, waiting
for memory: on a core of type ``p``, ``1 / Ips(p) = core / coef(p) + memory``. Three estimators:

* ``ipc`` (kwon2011 section 2.1): a vCPU that retires fewer instructions per CPU second than the
  calibration did on that type is assumed to wait for memory. Work that is slow for other reasons
  misleads it, as its authors say, so its standard error is always large.
* ``misses`` (after saez2015 section 3, which models speedup from IPC and last-level cache misses):
  the memory part of its cycles is misses x the cycles that a miss costs on that core type. The cost
  of a miss is measured by the calibration, and on vCPUs that ran on two types.
* ``sampling``: the vCPU ran on both types in its current phase, and both rates were measured.

All three rest on the same readings, so a weighted mean would count the evidence twice. Instead, the
estimate with the least standard error is used.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec import Struct

from amp_nova.model.topology import CoreType, Topology
from amp_nova.profiling.counter_windows import CounterProfile

CORE_SHARE_SE = 0.5
"""Standard error of the share of time that a faster core shortens, judged by instructions alone."""
MODEL_SE_RATIO = 0.02
"""Least relative standard error of a model: no model is as good as a measurement."""
AGE_SE_RATIO_PER_S = 0.05 / 3600
"""By how much the relative standard error of a sampled rate grows per second of age."""
AGE_MAX_S = 3600.0
MISS_CYCLES = 150.0
"""Default cost of a last-level cache miss on the slowest core type, in cycles: a memory latency of
80 ns, partly hidden."""
MISS_SE_RATIO = 0.5
"""Relative standard error of ``MISS_CYCLES``."""
SPREAD_RATIO = 0.1
"""Assumed relative spread of the cost of a miss between the workloads of one host."""
SPREAD_SAMPLES = 2
"""The assumed spread has the weight of this many samples."""
MISS_SAMPLES_MAX = 256
MEMORY_MIN_RATIO = 0.1
"""A vCPU that waits for memory for less of its time than this reveals no cost of a miss."""
STEP_MIN_RATIO = 0.01
"""A coefficient in force is not changed by less than this."""

HINTS = {"low": 0.1, "medium": 0.5, "high": 0.9}
"""The sensitivity to core speed, 0 to 1, that each word of ``amp:efficiency`` stands for."""
HINT_MAX = 100.0
"""Upper bound on hints: no core is more than this many times as fast as another of its host."""


class SpeedupEstimate(Struct, frozen=True):
    """An estimated ratio of speeds."""

    value: float
    se: float
    """Standard error."""
    source: str
    """The estimator: ``ipc``, ``misses`` or ``sampling``."""
    noise: float = 0.0
    """The part of the standard error that varies from window to window."""


@dataclass(frozen=True, slots=True)
class MissCost:
    """Cycles that a last-level cache miss costs on one core type."""

    cycles: float
    se_ratio: float


@dataclass(frozen=True, slots=True)
class Platform:
    """What the estimators need to know of a host. Both sequences are slowest core type first."""

    core_types: tuple[CoreType, ...]
    misses: tuple[MissCost | None, ...]

    def coefficient(self, position: int) -> float | None:
        """The coefficient of the core type at ``position``."""
        return self.core_types[position].coefficient


class MissSample(Struct, frozen=True):
    """The cost of a miss in cycles, on the slowest and on the fastest type, from one vCPU."""

    slow_cycles: float
    fast_cycles: float


def platform_of(core_types: Sequence[CoreType], samples: Collection[MissSample] = ()) -> Platform:
    """A host with the costs of a miss that the calibration and these samples measured.

    A miss takes the same time on all types, so a cost that is not measured in cycles of a type
    scales with the coefficient, which stands for the clock.
    """
    miss_samples, slowest = list(samples), MissCost(MISS_CYCLES, MISS_SE_RATIO)
    if core_types:
        on_slow, on_fast = core_types[0].miss_cycles, core_types[-1].miss_cycles
        if on_slow is not None and on_fast is not None:
            miss_samples.append(MissSample(on_slow, on_fast))
    if miss_samples:
        slowest = _mean_cost([s.slow_cycles for s in miss_samples])
    least = core_types[0].coefficient if core_types else None
    costs = [
        MissCost(slowest.cycles * t.coefficient / least, slowest.se_ratio)
        if least is not None and t.coefficient is not None
        else None
        for t in core_types
    ]
    if miss_samples:
        costs[0] = slowest
        costs[-1] = _mean_cost([s.fast_cycles for s in miss_samples])
    return Platform(tuple(core_types), tuple(costs))


def _mean_cost(cycles: Sequence[float]) -> MissCost:
    """The mean of these costs, and its error for a vCPU whose work is not among them."""
    count, mean = len(cycles), math.fsum(cycles) / len(cycles)
    scatter = math.fsum([(c / mean - 1.0) ** 2 for c in cycles])
    spread = (SPREAD_SAMPLES * SPREAD_RATIO**2 + scatter) / (SPREAD_SAMPLES + count)
    return MissCost(mean, math.sqrt(spread * (1.0 + 1.0 / count)))


Estimator = Callable[[Platform, CounterProfile, int, int, float], SpeedupEstimate | None]
"""Estimates the speed on the core type at ``over`` over that at ``under``, by their positions.

Takes the platform, the vCPU's profile, ``over``, ``under`` and the time in seconds. ``None``: the
profile or the platform lacks what the estimator needs.
"""


def _from_core_share(share: float, at: float, over: float, under: float) -> tuple[float, float]:
    """The speedup from the share of time that a faster core shortens, and its slope in that share.

    ``at``, ``over`` and ``under`` are coefficients: that of the type on which the share was
    measured, and those of the two types to compare.
    """
    share = min(1.0, max(0.0, share))
    longer_over, longer_under = at / over - 1.0, at / under - 1.0
    on_over, on_under = 1.0 + share * longer_over, 1.0 + share * longer_under
    slope = (longer_under * on_over - longer_over * on_under) / on_over**2
    return on_under / on_over, abs(slope)


def _coefficients(
    platform: Platform, at: int, over: int, under: int
) -> tuple[float, float, float] | None:
    types = platform.core_types
    here, fast, slow = types[at].coefficient, types[over].coefficient, types[under].coefficient
    return None if here is None or fast is None or slow is None else (here, fast, slow)


def from_ipc(
    platform: Platform, profile: CounterProfile, over: int, under: int, _now_s: float
) -> SpeedupEstimate | None:
    """An ``Estimator``: instructions per CPU second alone, against the calibration's."""
    now, at = profile.now, profile.position
    if now is None or at is None:
        return None
    nominal_ips = platform.core_types[at].nominal_ips
    if nominal_ips is None or (coefficients := _coefficients(platform, at, over, under)) is None:
        return None
    share = now.ips.value / nominal_ips
    value, slope = _from_core_share(share, *coefficients)
    noise = slope * min(1.0, share) * now.ips.se_ratio
    return SpeedupEstimate(value, math.hypot(slope * CORE_SHARE_SE, noise), "ipc", noise)


def from_misses(
    platform: Platform, profile: CounterProfile, over: int, under: int, _now_s: float
) -> SpeedupEstimate | None:
    """An ``Estimator``: cycles and last-level cache misses."""
    now, at = profile.now, profile.position
    if now is None or at is None:
        return None
    coefficients = _coefficients(platform, at, over, under)
    counted, miss = now.misses_per_cycle, platform.misses[at]
    if coefficients is None or counted is None or miss is None:
        return None
    memory = min(1.0, counted.value * miss.cycles)
    value, slope = _from_core_share(1.0 - memory, *coefficients)
    noise = slope * memory * counted.se_ratio
    se = math.hypot(slope * memory * miss.se_ratio, noise, value * MODEL_SE_RATIO)
    return SpeedupEstimate(value, se, "misses", noise)


def from_sampling(
    _platform: Platform, profile: CounterProfile, over: int, under: int, now_s: float
) -> SpeedupEstimate | None:
    """An ``Estimator``: the rates on both types, if the vCPU ran on both lately."""
    fast, slow = profile.types[over], profile.types[under]
    if fast is None or slow is None:
        return None
    age_s = max(0.0, now_s - fast.at_s, now_s - slow.at_s)
    if age_s > AGE_MAX_S:
        return None
    value = fast.ips.value / slow.ips.value
    noise = value * math.hypot(fast.ips.se_ratio, slow.ips.se_ratio)
    se = math.hypot(noise, value * age_s * AGE_SE_RATIO_PER_S)
    return SpeedupEstimate(value, se, "sampling", noise)


ESTIMATORS: tuple[Estimator, ...] = (from_sampling, from_misses, from_ipc)


def speedup(
    platform: Platform, profile: CounterProfile, over: int, under: int, now_s: float
) -> SpeedupEstimate | None:
    """The estimate with the least standard error; ``None`` if no estimator has one."""
    made = [estimator(platform, profile, over, under, now_s) for estimator in ESTIMATORS]
    return min((e for e in made if e is not None), key=lambda e: e.se, default=None)


def shrink(estimate: SpeedupEstimate, coefficient: float) -> float:
    """The estimate, drawn toward the hardware's coefficient according to its standard error.

    If the speedup may be anything from 1 to ``coefficient``, its mean squared distance from
    ``coefficient`` is ``(coefficient - 1)^2 / 3``. That is the error of relying on the hardware
    alone, and is weighed against the estimate's own squared error. The result lies between 1 and
    ``coefficient``.
    """
    variance = (coefficient - 1.0) ** 2 / 3.0
    if variance == 0.0:
        return coefficient
    value = coefficient + (estimate.value - coefficient) * variance / (variance + estimate.se**2)
    low, high = sorted((1.0, coefficient))
    return min(high, max(low, value))


def own_coefficient(estimate: SpeedupEstimate, ours: float, theirs: float) -> float:
    """A vCPU's own coefficient of a core type, from the hardware's: ``ours``.

    ``theirs``: the coefficient of the base type, for which the hardware's is used as it is: the
    reference core type or, if this host has none, the slowest type here. ``estimate``: the vCPU's
    speedup over the base type.
    """
    return theirs * shrink(estimate, ours / theirs)


def drift(
    platform: Platform, profiles: Iterable[CounterProfile], position: int, now_s: float
) -> float | None:
    """The speedup that guests show on a core type over the slowest, over the coefficients' ratio.

    The median over the vCPUs that ran on both types lately and, where misses are counted, wait
    little for memory. Above 1 the calibration is out of date; well below 1 it may be. ``None``: no
    such vCPU. The miss costs of ``platform`` must not be measured with these same coefficients.
    """
    ours, theirs = platform.coefficient(position), platform.coefficient(0)
    if ours is None or theirs is None or position == 0:
        return None
    ratios = []
    for profile in profiles:
        estimate = from_sampling(platform, profile, position, 0, now_s)
        if estimate is not None and _computes(platform, profile, position):
            ratios.append(estimate.value * theirs / ours)
    return median(ratios) if ratios else None


def _computes(platform: Platform, profile: CounterProfile, position: int) -> bool:
    """Whether a vCPU waits little for memory on a core type; assumed if misses are not counted."""
    here, miss = profile.types[position], platform.misses[position]
    if here is None or here.misses_per_cycle is None or miss is None:
        return True
    return here.misses_per_cycle.value * miss.cycles < MEMORY_MIN_RATIO


def next_coefficient(in_force: float, measured: float, noise: float) -> float:
    """``measured`` if it differs from ``in_force`` by more than noise, else the latter.

    Every change writes a quota, and on a real host each write refills it.
    """
    enough = max(STEP_MIN_RATIO * in_force, 2.0 * noise)
    return measured if abs(measured - in_force) > enough else in_force


def miss_sample(platform: Platform, profile: CounterProfile) -> MissSample | None:
    """The cost of a miss from a vCPU that ran on the slowest and on the fastest core type.

    With ``r`` the ratio of the coefficients and ``s`` that of its rates, the share of memory in its
    time is ``(r - s) / (r - 1)`` on the faster type and ``1/s`` of that on the slower one. ``None``
    if the vCPU did not run on both, its misses are not counted, or it hardly waits for memory.
    """
    fast, slow = profile.types[-1], profile.types[0]
    theirs = platform.core_types[-1].coefficient, platform.core_types[0].coefficient
    if fast is None or slow is None or theirs[0] is None or theirs[1] is None:
        return None
    if theirs[0] <= theirs[1]:
        return None
    ratio, gain = theirs[0] / theirs[1], fast.ips.value / slow.ips.value
    memory = min(1.0, (ratio - gain) / (ratio - 1.0))
    on_fast, on_slow = fast.misses_per_cycle, slow.misses_per_cycle
    if memory < MEMORY_MIN_RATIO or on_fast is None or on_slow is None:
        return None
    if not on_fast.value or not on_slow.value:
        return None
    return MissSample(memory / gain / on_slow.value, memory / on_fast.value)


def hinted_speedup(hint: float | str | None, topology: Topology) -> float | None:
    """The speedup on this host that ``amp:efficiency`` stands for.

    A number is the speedup itself. A word of sensitivity x stands for ``(1 + x (fast - 1)) / (1 +
    x (slow - 1))``, with the coefficients of the fastest and the slowest core type. ``None``: no
    hint, or the coefficients are unknown.
    """
    if not isinstance(hint, str):
        return None if hint is None else min(hint, HINT_MAX)
    coefficients = [t.coefficient for t in topology.core_types if t.coefficient is not None]
    x = HINTS.get(hint)
    if x is None or not coefficients:
        return None
    return (1.0 + x * (coefficients[-1] - 1.0)) / (1.0 + x * (coefficients[0] - 1.0))
