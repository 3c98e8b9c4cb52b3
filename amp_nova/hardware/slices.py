# SPDX-License-Identifier: Apache-2.0
"""The slices of a calibration: their order, and which of them say how fast a core is.

Whatever disturbs a core only ever slows it down, and most of it comes and goes within milliseconds:
a neighbour on a sibling thread, time that a hypervisor takes and does not report, cold caches. So
each kernel runs in slices of some 15 ms, and the speed of a core in a round is the rate that one
slice in ten exceeds. It is right as long as a tenth of the slices is undisturbed.

Means are not, nor are medians, even of the ratios of neighbouring slices: if one of two cores is
disturbed half of the time, they are off by 10 to 70 %. The very fastest slice is too fast on a core
that is itself slow in bursts, as the cores of some virtual machines are.
"""

import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FASTEST_RATIO = 0.1
"""Share of the slices that are faster than the speed that counts."""
MIN_SLICES = 5
"""Fewer of them do not say how fast a core is."""
MIN_OPS = 10
"""A slice in which fewer operations ran alone does not count."""
MIN_CPU_SHARE_RATIO = 0.95
"""An operation that gets less of its pCPU than this was preempted, and does not count."""


@dataclass(frozen=True, slots=True)
class Run:
    """What to measure in a slice."""

    core_type: str
    kernel: str
    smt_busy: bool
    """Whether the sibling threads of the core run the same kernel at the same time."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A few operations of a kernel, one after the other on one pCPU."""

    ops_per_cpu_s: float | None
    """Speed of the core, ``None`` if too many operations were preempted."""
    cpu_s: float
    wall_s: float
    instructions_per_op: float | None = None
    """``None`` if instructions are not counted."""
    cycles_per_op: float | None = None
    """``None`` if cycles are not counted."""
    misses_per_op: float | None = None
    """Last-level cache misses, ``None`` if they are not counted or few."""


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """The fastest slices of one run in a round."""

    round: int
    core_type: str
    kernel: str
    smt_busy: bool
    pcpu: int
    ops_per_cpu_s: float
    ips: float | None = None
    """Instructions retired per CPU second, ``None`` if they are not counted."""
    clock_hz: float | None = None
    """Cycles per CPU second, ``None`` if they are not counted."""
    misses_per_cpu_s: float | None = None


def runs(
    types: Mapping[str, bool], kernels: Sequence[str], shuffled: random.Random
) -> tuple[Run, ...]:
    """Every run once; those of one kernel are neighbours, so that they are close in time.

    ``types`` maps each core type to whether it has SMT siblings.
    """
    steps = []
    for kernel in shuffled.sample(kernels, len(kernels)):
        states = [(name, busy) for name in types for busy in (False, True)[: 1 + types[name]]]
        steps += [Run(name, kernel, busy) for name, busy in shuffled.sample(states, len(states))]
    return tuple(steps)


def rate(operations: Sequence[tuple[int, int]]) -> float | None:
    """Operations per CPU second of those that were not preempted; ``None`` if they are too few.

    ``operations``: the wall and CPU nanoseconds of each.
    """
    alone = [cpu_ns for wall_ns, cpu_ns in operations if cpu_ns >= MIN_CPU_SHARE_RATIO * wall_ns]
    return len(alone) * 1e9 / sum(alone) if len(alone) >= MIN_OPS else None


def fastest(number: int, run: Run, pcpu: int, slices: Sequence[Slice]) -> SpeedSample | None:
    """The sample of a round; ``None`` if too few slices were not preempted."""
    rates = sorted((s.ops_per_cpu_s for s in slices if s.ops_per_cpu_s), reverse=True)
    if len(rates) < MIN_SLICES:
        return None
    speed = rates[int(FASTEST_RATIO * len(rates))]

    def counted(per_op: Iterable[float | None]) -> float | None:
        counts = [count for count in per_op if count]
        return statistics.median(counts) * speed if counts else None

    return SpeedSample(
        round=number,
        core_type=run.core_type,
        kernel=run.kernel,
        smt_busy=run.smt_busy,
        pcpu=pcpu,
        ops_per_cpu_s=speed,
        ips=counted(s.instructions_per_op for s in slices),
        clock_hz=counted(s.cycles_per_op for s in slices),
        misses_per_cpu_s=counted(s.misses_per_op for s in slices),
    )
