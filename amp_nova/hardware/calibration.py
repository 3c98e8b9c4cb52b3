"""What a calibration makes of its measurements: coefficients, nominal Ips and how sure they are.

A coefficient is ``coef(p) = T(app, p_ref) / T(app, p)`` for a single-threaded CPU-bound application
run alone (teabe2017). Rates per CPU second stand for 1/T here: on a slower core the same CPU second
does less work, and what another process or the hypervisor took away is not in it.

* Core types take turns (there and back: A B, B A, ...), and only rates of one round are divided by
  each other. A machine that drifts slows both alike, and the ratio stays.
* The kernels of one round join by their geometric mean. Of ratios it is the one mean for which the
  result does not depend on which type is the reference, and for which nominal Ips over nominal Ips
  is the coefficient again. Only CPU-bound kernels take part: a memory-bound one shows what an
  application may fall short by, not what the core can do. It is reported beside them.
* Rounds join by their median, with the confidence interval of the order statistics. That assumes no
  distribution, and with few rounds it says how little it knows: three rounds give 75 %, not 95 %.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from amp_nova.exceptions import CalibrationInvalid

SCHEMA = 1
WANTED_CONFIDENCE_RATIO = 0.95
MAX_WIDTH_RATIO = 0.1
"""A coefficient whose interval is wider than this share of it is too noisy to book by."""
MIN_CPU_SHARE_RATIO = 0.9
"""A kernel that got less of its pCPU than this did not run alone."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One piece of work to measure with."""

    name: str
    cpu_bound: bool
    arguments: str
    """What the load generator was told. Rates of different arguments cannot be compared."""


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the schedule."""

    round: int
    core_type: str
    kernel: str
    smt_busy: bool
    """Whether the sibling threads of the core run the same kernel meanwhile."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run gave."""

    round: int
    core_type: str
    kernel: str
    smt_busy: bool
    pcpu: int
    ops: float
    cpu_s: float
    wall_s: float
    ips: float | None = None
    """Instructions retired per CPU second, ``None`` where nothing counts them."""

    @property
    def ops_per_cpu_s(self) -> float:
        """Speed of the core at this kernel."""
        return self.ops / self.cpu_s

    @property
    def cpu_share_ratio(self) -> float:
        """How much of the pCPU the kernel got."""
        return self.cpu_s / self.wall_s


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median and the interval that holds the true one with at least this confidence."""

    value: float
    low: float
    high: float
    confidence_ratio: float

    @property
    def width_ratio(self) -> float:
        """Width of the interval over the value: the spread."""
        return (self.high - self.low) / self.value


@dataclass(frozen=True, slots=True)
class KernelResult:
    """One kernel on one core type, sibling threads idle."""

    kernel: str
    ratio: Estimate
    """Speed over the reference core."""
    ops_per_cpu_s: Estimate
    ips: Estimate | None


@dataclass(frozen=True, slots=True)
class TypeResult:
    """One core type."""

    name: str
    pcpus: tuple[int, ...]
    measured_pcpu: int
    coefficient: Estimate
    kernels: tuple[KernelResult, ...]
    nominal_ips: Estimate | None
    smt_busy_factor: Estimate | None
    """Speed of a thread with busy siblings over that with idle ones; ``None``: it has none."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where and how a calibration was made."""

    date: str
    host: str
    cpu_model: str | None
    microcode: str | None
    governor: str | None
    turbo: str | None
    smt: str | None
    kernel_release: str
    stress_ng_version: str
    run_s: int
    repeat: int
    forced: bool
    """Whether the operator overrode the refusal of a busy or noisy machine."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything the calibration file holds."""

    schema: int
    reference: str
    reference_host: str | None
    """Host whose file gave the reference core, ``None`` when it is a core of this one."""
    provenance: Provenance
    kernels: tuple[Kernel, ...]
    core_types: tuple[TypeResult, ...]
    """Slowest first."""
    nominal_ips_missing: str | None
    """Why there is no nominal Ips, ``None`` when there is."""
    warnings: tuple[str, ...]
    samples: tuple[Sample, ...]


def schedule(types: Mapping[str, bool], kernels: Sequence[str], repeat: int) -> tuple[Step, ...]:
    """The runs in their order; ``types`` says of each core type whether it has SMT siblings."""
    steps = []
    for number in range(repeat):
        # There and back: what drifts steadily is cancelled over two rounds.
        order = list(types) if number % 2 == 0 else list(types)[::-1]
        for kernel in kernels:
            for name in order:
                states = (False, True) if types[name] else (False,)
                steps += [Step(number, name, kernel, busy) for busy in states]
    return tuple(steps)


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return ordered[half - 1] + (ordered[half] - ordered[half - 1]) / 2


def estimate(values: Collection[float], wanted_ratio: float = WANTED_CONFIDENCE_RATIO) -> Estimate:
    """Median with the narrowest order-statistic interval of the wanted confidence, if there is one.

    The k-th smallest and k-th largest of ``n`` values enclose the true median with probability
    ``1 - 2 * P(Binomial(n, 1/2) < k)``, whatever the distribution. Too few values give their whole
    range, with the confidence it has.
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
    return Estimate(median(ordered), ordered[k - 1], ordered[n - k], confidence)


def quotient(over: Estimate, under: Estimate) -> Estimate:
    """One estimate over another, measured apart: the widest interval, and both may be wrong."""
    confidence = max(0.0, over.confidence_ratio + under.confidence_ratio - 1)
    return Estimate(
        over.value / under.value, over.low / under.high, over.high / under.low, confidence
    )


def geometric_mean(values: Collection[float]) -> float:
    """The mean that suits ratios."""
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def by_round(
    samples: Iterable[Sample],
    core_type: str,
    kernels: Collection[str],
    smt_busy: bool = False,
    of: Callable[[Sample], float | None] = lambda sample: sample.ops_per_cpu_s,
) -> dict[int, float]:
    """Geometric mean over the kernels of each round; a round that lacks one is left out."""
    found: dict[int, dict[str, float]] = {}
    for sample in samples:
        wanted = sample.core_type == core_type and sample.smt_busy == smt_busy
        value = of(sample) if wanted and sample.kernel in kernels else None
        if value is not None:
            found.setdefault(sample.round, {})[sample.kernel] = value
    whole = {r: v for r, v in found.items() if len(v) == len(set(kernels))}
    return {r: geometric_mean(list(v.values())) for r, v in sorted(whole.items())}


def paired(over: Mapping[int, float], under: Mapping[int, float]) -> Estimate | None:
    """Ratio per round, then over the rounds; ``None`` without a common round."""
    ratios = [over[r] / under[r] for r in over if r in under]
    return estimate(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class Reference:
    """The core that has coefficient 1."""

    name: str
    samples: tuple[Sample, ...]
    """Of this calibration, or of that of the host that has the reference core."""
    foreign: bool = False

    def ratio(self, mine: Sequence[Sample], core_type: str, kernels: Collection[str]) -> Estimate:
        """Speed of a core type over the reference."""
        over = by_round(mine, core_type, kernels)
        under = by_round(self.samples, self.name, kernels)
        if self.foreign and over and under:
            # Rounds of two machines are no pairs: nothing cancels.
            return quotient(estimate(over.values()), estimate(under.values()))
        ratio = paired(over, under)
        if ratio is None:
            raise CalibrationInvalid(
                f"'{core_type}' and the reference core '{self.name}' have no measurement of"
                f" {', '.join(kernels)} in common; calibrate both with the same --kernels"
            )
        return ratio


def slowest(samples: Sequence[Sample], names: Sequence[str], cpu_bound: Collection[str]) -> str:
    """The slowest core type; the first name, unless another one is slower for sure."""
    reference = Reference(names[0], tuple(samples))
    ratios = {name: reference.ratio(samples, name, cpu_bound) for name in names}
    slower = {name: ratio.value for name, ratio in ratios.items() if ratio.high < 1}
    return min(slower, key=lambda name: slower[name]) if slower else names[0]


def summarise(
    samples: Sequence[Sample],
    pcpus: Mapping[str, tuple[int, ...]],
    kernels: Sequence[Kernel],
    reference: Reference,
) -> tuple[TypeResult, ...]:
    """What the samples say of every core type of ``pcpus``, slowest first."""
    cpu_bound = [k.name for k in kernels if k.cpu_bound]
    results = [
        _type_result(samples, name, pcpus[name], kernels, cpu_bound, reference) for name in pcpus
    ]
    return tuple(sorted(results, key=lambda r: r.coefficient.value))


def _type_result(
    samples: Sequence[Sample],
    name: str,
    pcpus: tuple[int, ...],
    kernels: Sequence[Kernel],
    cpu_bound: Collection[str],
    reference: Reference,
) -> TypeResult:
    idle, busy = (by_round(samples, name, cpu_bound, smt_busy) for smt_busy in (False, True))
    return TypeResult(
        name=name,
        pcpus=pcpus,
        measured_pcpu=next(s.pcpu for s in samples if s.core_type == name),
        coefficient=reference.ratio(samples, name, cpu_bound),
        kernels=tuple(
            KernelResult(
                kernel=kernel.name,
                ratio=reference.ratio(samples, name, [kernel.name]),
                ops_per_cpu_s=estimate(by_round(samples, name, [kernel.name]).values()),
                ips=_ips(samples, name, [kernel.name]),
            )
            for kernel in kernels
        ),
        nominal_ips=_ips(samples, name, cpu_bound),
        smt_busy_factor=paired(busy, idle),
    )


def _ips(samples: Sequence[Sample], name: str, kernels: Collection[str]) -> Estimate | None:
    values = by_round(samples, name, kernels, of=lambda sample: sample.ips).values()
    return estimate(values) if values else None


def noise(results: Sequence[TypeResult], samples: Sequence[Sample]) -> str | None:
    """Why these results are too noisy to book by, ``None`` when they are good."""
    for sample in samples:
        if sample.cpu_share_ratio < MIN_CPU_SHARE_RATIO:
            return (
                f"'{sample.kernel}' got only {sample.cpu_share_ratio:.0%} of pCPU {sample.pcpu} in"
                f" round {sample.round + 1}, so something else ran there"
            )
    for result in results:
        coefficient = result.coefficient
        if coefficient.width_ratio > MAX_WIDTH_RATIO:
            return (
                f"the coefficient of '{result.name}' is {coefficient.value:.3g} somewhere between"
                f" {coefficient.low:.3g} and {coefficient.high:.3g}, a spread of"
                f" {coefficient.width_ratio:.0%} where {MAX_WIDTH_RATIO:.0%} is allowed"
            )
    return None
