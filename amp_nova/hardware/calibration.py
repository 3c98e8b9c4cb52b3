# SPDX-License-Identifier: Apache-2.0
"""What a calibration derives from its measurements: coefficients, nominal Ips and confidence.

A coefficient is ``coef(p) = T(app, p_ref) / T(app, p)`` for a single-threaded, CPU-bound
application that runs alone (teabe2017, equation 1). Rates per CPU second stand in for 1/T: they
exclude the time that another process, or a hypervisor that reports it, takes away.

* The speed of a core in a round is that of its fastest slices (``hardware/slices``), and only
  rates of the same round are divided by each other: drift of the whole machine slows all types and
  cancels.
* The kernels of a round combine by their geometric mean, the only mean of ratios that does not
  depend on which type is the reference and that makes the ratio of two nominal Ips equal to the
  coefficient. Only CPU-bound kernels count. A memory-bound kernel is reported beside them: it shows
  how far an application may fall short of the core.
* Rounds combine by their median, with the confidence interval of the order statistics. It assumes
  no distribution and is honest about few rounds: three give 75 % confidence, not 95 %. What the
  rounds have in common it cannot show: ``MIN_ERROR_RATIO`` is added.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from amp_nova.exceptions import CalibrationInvalid
from amp_nova.hardware.slices import SpeedSample

WANTED_CONFIDENCE_RATIO = 0.95
MAX_WIDTH_RATIO = 0.1
"""A coefficient whose interval is wider than this share of its value is too noisy."""
WAITS_MIN_RATIO = 0.1
"""What waits for memory for less of its time than this does not tell what a miss costs."""
MIN_ERROR_RATIO = 0.01
"""Half the width that the interval of a coefficient has at least, as a share of its value."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One workload of the calibration."""

    name: str
    cpu_bound: bool
    work: str = ""
    """What it does. Rates of different work are not comparable."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median, and an interval that contains the true median with this confidence or more."""

    value: float
    low: float
    high: float
    confidence_ratio: float

    @property
    def width_ratio(self) -> float:
        """Width of the interval as a share of the value."""
        return (self.high - self.low) / self.value


@dataclass(frozen=True, slots=True)
class KernelResult:
    """One kernel on one core type, with idle sibling threads unless stated otherwise."""

    kernel: str
    ratio: Estimate
    """Speed relative to the reference core."""
    ops_per_cpu_s: Estimate
    ips: Estimate | None
    smt_busy_factor: Estimate | None = None
    """Its speed with busy siblings relative to idle ones; ``None`` without siblings."""


@dataclass(frozen=True, slots=True)
class TypeResult:
    """The result for one core type."""

    name: str
    pcpus: tuple[int, ...]
    measured_pcpu: int
    coefficient: Estimate
    kernels: tuple[KernelResult, ...]
    nominal_ips: Estimate | None
    smt_busy_factor: Estimate | None
    """Speed of a thread with busy siblings relative to idle ones; ``None`` without siblings."""
    clock_hz: Estimate | None
    """Clock at which it was measured, ``None`` if cycles are not counted."""
    ops_per_cpu_s: Estimate
    """Speed: the geometric mean over the CPU-bound kernels."""
    miss_cycles: Estimate | None = None
    """What a last-level cache miss costs; ``None``: unknown, or neither slowest nor fastest."""

    def speed(self, kernels: Sequence[str]) -> Estimate | None:
        """Speed on one kernel, or on the CPU-bound ones; ``None`` if it was not measured."""
        if len(kernels) > 1:
            return self.ops_per_cpu_s
        return next((k.ops_per_cpu_s for k in self.kernels if k.kernel in kernels), None)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where and how a calibration was made. The fields are those of the calibration file."""

    date: str
    host: str
    cpu_model: str | None
    microcode: str | None
    governor: str | None
    turbo: str | None
    smt: str | None
    kernel_release: str
    run_s: int
    repeat: int
    forced: bool
    """Whether ``--force`` overrode the refusal of a noisy machine."""
    python_version: str
    """Whose code the kernels are."""
    in_service: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of one CPU model."""

    reference: str
    reference_host: str | None
    """The host that has the reference core, ``None`` if it is this one."""
    provenance: Provenance
    kernels: tuple[Kernel, ...]
    core_types: tuple[TypeResult, ...]
    """Slowest first."""
    nominal_ips_missing: str | None
    """Why there are no nominal Ips, ``None`` if there are."""
    warnings: tuple[str, ...]


def estimate(values: Collection[float], wanted_ratio: float = WANTED_CONFIDENCE_RATIO) -> Estimate:
    """The median, with the narrowest order-statistic interval of the wanted confidence.

    The k-th smallest and k-th largest of ``n`` values enclose the true median with probability
    ``1 - 2 * P(Binomial(n, 1/2) < k)`` for any distribution. If there are too few values for the
    wanted confidence, the interval is their whole range. Raises ``ValueError`` if there are none.
    """
    if not values:
        raise ValueError("an estimate needs at least one value")
    ordered = sorted(values)
    n = len(ordered)
    k, confidence = 1, 1 - 2 * 0.5**n
    below = 0.5**n
    for rank in range(2, n // 2 + 1):
        below += math.comb(n, rank - 1) * 0.5**n
        if 1 - 2 * below < wanted_ratio:
            break
        k, confidence = rank, 1 - 2 * below
    return Estimate(statistics.median(ordered), ordered[k - 1], ordered[n - k], confidence)


def quotient(over: Estimate, under: Estimate) -> Estimate:
    """The ratio of two independent estimates, with the widest interval and joint confidence."""
    confidence = max(0.0, over.confidence_ratio + under.confidence_ratio - 1)
    return Estimate(
        over.value / under.value, over.low / under.high, over.high / under.low, confidence
    )


def by_round(
    samples: Iterable[SpeedSample],
    core_type: str,
    kernels: Collection[str],
    smt_busy: bool = False,
    of: Callable[[SpeedSample], float | None] = lambda sample: sample.ops_per_cpu_s,
) -> dict[int, float]:
    """Geometric mean over the kernels by round; rounds that lack a kernel are omitted."""
    rounds: dict[int, dict[str, float]] = {}
    for sample in samples:
        matches = sample.core_type == core_type and sample.smt_busy == smt_busy
        value = of(sample) if matches and sample.kernel in kernels else None
        if value is not None:
            rounds.setdefault(sample.round, {})[sample.kernel] = value
    complete = {r: v for r, v in rounds.items() if len(v) == len(set(kernels))}
    return {r: statistics.geometric_mean(v.values()) for r, v in sorted(complete.items())}


def paired(over: Mapping[int, float], under: Mapping[int, float]) -> Estimate | None:
    """Estimate of the ratios within each round; ``None`` without a common round."""
    ratios = [over[r] / under[r] for r in over if r in under]
    return estimate(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class Reference:
    """The core type that has coefficient 1."""

    name: str
    samples: tuple[SpeedSample, ...] = ()
    """Samples of this calibration."""
    elsewhere: TypeResult | None = None
    """The result for the core on the host that has it, ``None`` if that is this one."""

    def ratio(self, samples: Iterable[SpeedSample], name: str, kernels: Sequence[str]) -> Estimate:
        """Speed of core type ``name`` relative to this one.

        Raises ``CalibrationInvalid`` if one of them could not be measured.
        """
        over = by_round(samples, name, kernels)
        if self.elsewhere is None:
            ratio = paired(over, by_round(self.samples, self.name, kernels))
        else:
            # Rounds of two machines are not pairs: no common drift cancels.
            under = self.elsewhere.speed(kernels)
            ratio = quotient(estimate(over.values()), under) if over and under else None
        if ratio is None:
            raise CalibrationInvalid(
                f"too few slices of {', '.join(kernels)} ran on '{name}' or '{self.name}' without"
                " being preempted; free their pCPUs from other work, or raise --seconds"
            )
        if self.elsewhere is None and name == self.name:
            return ratio
        low, high = ratio.value * (1 - MIN_ERROR_RATIO), ratio.value * (1 + MIN_ERROR_RATIO)
        return replace(ratio, low=min(ratio.low, low), high=max(ratio.high, high))


def slowest(samples: Sequence[SpeedSample], names: Sequence[str], cpu_bound: Sequence[str]) -> str:
    """The slowest core type; the first name unless another is slower beyond the noise."""
    reference = Reference(names[0], tuple(samples))
    ratios = {name: reference.ratio(samples, name, cpu_bound) for name in names}
    slower = {name: ratio.value for name, ratio in ratios.items() if ratio.high < 1}
    return min(slower, key=lambda name: slower[name]) if slower else names[0]


def summarise(
    samples: Sequence[SpeedSample],
    pcpus: Mapping[str, tuple[int, ...]],
    kernels: Sequence[Kernel],
    reference: Reference,
) -> tuple[TypeResult, ...]:
    """The results for every core type of ``pcpus``, slowest first."""
    results = [_result(samples, name, ids, kernels, reference) for name, ids in pcpus.items()]
    results.sort(key=lambda r: r.coefficient.value)
    if len(results) > 1:
        costs = _miss_cycles(samples, results[0].name, results[-1].name, kernels)
        for at, cost in zip((0, -1), costs, strict=True):
            results[at] = replace(results[at], miss_cycles=cost)
    return tuple(results)


def _miss_cycles(
    samples: Sequence[SpeedSample], slow: str, fast: str, kernels: Sequence[Kernel]
) -> tuple[Estimate | None, Estimate | None]:
    """Cycles that a last-level cache miss costs on two core types; ``None`` if it is unknown.

    A kernel that gains less than the CPU-bound ones waits for memory, which no core shortens. With
    ``r`` for what those gain and ``g`` for what it gains, it waits for ``(r - g) / (r - 1)`` of its
    time on the faster type, and for ``1/g`` of that on the slower one.
    """
    computes = [k.name for k in kernels if k.cpu_bound]
    waits = [k.name for k in kernels if not k.cpu_bound]

    def cycles_per_miss(sample: SpeedSample) -> float | None:
        hz, misses = sample.clock_hz, sample.misses_per_cpu_s
        return hz / misses if hz and misses else None

    costs: tuple[list[float], list[float]] = ([], [])
    core = [by_round(samples, name, computes) for name in (slow, fast)]
    whole = [by_round(samples, name, waits) for name in (slow, fast)] if waits else [{}, {}]
    of = [by_round(samples, name, waits, of=cycles_per_miss) for name in (slow, fast)]
    for number in set.intersection(*(set(each) for each in (*core, *whole, *of))):
        ratio, gain = (each[1][number] / each[0][number] for each in (core, whole))
        waiting = min(1.0, (ratio - gain) / (ratio - 1.0)) if ratio > 1.0 else 0.0
        if waiting >= WAITS_MIN_RATIO:
            costs[0].append(waiting / gain * of[0][number])
            costs[1].append(waiting * of[1][number])
    return (estimate(costs[0]), estimate(costs[1])) if costs[0] else (None, None)


def _result(
    samples: Sequence[SpeedSample],
    name: str,
    pcpus: tuple[int, ...],
    kernels: Sequence[Kernel],
    reference: Reference,
) -> TypeResult:
    mine = [s for s in samples if s.core_type == name]
    cpu_bound = [k.name for k in kernels if k.cpu_bound]
    clocks = by_round(mine, name, cpu_bound, of=lambda sample: sample.clock_hz).values()
    coefficient = reference.ratio(mine, name, cpu_bound)
    return TypeResult(
        name=name,
        pcpus=pcpus,
        measured_pcpu=mine[0].pcpu,
        coefficient=coefficient,
        kernels=tuple(
            KernelResult(
                kernel=kernel.name,
                ratio=reference.ratio(mine, name, [kernel.name]),
                ops_per_cpu_s=estimate(by_round(mine, name, [kernel.name]).values()),
                ips=_ips(mine, name, [kernel.name]),
                smt_busy_factor=_busy_factor(mine, name, [kernel.name]),
            )
            for kernel in kernels
        ),
        nominal_ips=_ips(mine, name, cpu_bound),
        smt_busy_factor=_busy_factor(mine, name, cpu_bound),
        clock_hz=estimate(clocks) if clocks else None,
        ops_per_cpu_s=estimate(by_round(mine, name, cpu_bound).values()),
    )


def _busy_factor(
    samples: Sequence[SpeedSample], name: str, kernels: Collection[str]
) -> Estimate | None:
    idle, busy = (by_round(samples, name, kernels, smt_busy) for smt_busy in (False, True))
    return paired(busy, idle)


def _ips(samples: Iterable[SpeedSample], name: str, kernels: Collection[str]) -> Estimate | None:
    values = by_round(samples, name, kernels, of=lambda sample: sample.ips).values()
    return estimate(values) if values else None


def noise(results: Sequence[TypeResult]) -> str | None:
    """Why these results are too noisy to use, ``None`` if they are not."""
    for result in results:
        coefficient = result.coefficient
        if coefficient.width_ratio > MAX_WIDTH_RATIO:
            return (
                f"the coefficient of '{result.name}' is {coefficient.value:.3g}, within"
                f" {coefficient.low:.3g} to {coefficient.high:.3g}: a spread of"
                f" {coefficient.width_ratio:.0%}, and at most {MAX_WIDTH_RATIO:.0%} is allowed"
            )
    return None
