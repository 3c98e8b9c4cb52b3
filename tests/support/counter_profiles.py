# SPDX-License-Identifier: Apache-2.0
"""Counter profiles for tests: the counters of work with a known share of memory time.

The model is written out here independently of the package: a core computes, then waits.
"""

from dataclasses import dataclass

from amp_nova.model.topology import CoreType
from amp_nova.profiling.counter_windows import CounterProfile, CounterWindow, with_window
from amp_nova.profiling.speedup import MissCost, Platform


@dataclass(frozen=True)
class Work:
    """Cycles of computing and misses per instruction; a miss takes ``miss_s`` on every core."""

    core_cpi: float = 0.5
    misses: float = 0.005
    miss_s: float = 80e-9
    clocks_hz: tuple = (1e9, 2.375e9)

    def cpi(self, position):
        return self.core_cpi + self.misses * self.miss_s * self.clocks_hz[position]

    def ips(self, position):
        return self.clocks_hz[position] / self.cpi(position)

    @property
    def speedup(self):
        """The true speedup, to compare estimates with."""
        return self.ips(-1) / self.ips(0)

    def window(self, position, run_s=2.0, off=1.0, off_misses=1.0):
        """A window of two seconds; ``off`` and ``off_misses`` are factors of measurement error."""
        instructions = self.ips(position) * run_s * off
        cycles, misses = self.clocks_hz[position] * run_s, self.misses * instructions * off_misses
        return CounterWindow(2.0, run_s, round(instructions), round(cycles), round(misses))


def work_of(speedup, ratio=2.375, **more):
    """Work with the given speedup."""
    base = Work(clocks_hz=(1e9, ratio * 1e9), **more)
    # speedup = (core + m * f_slow) / (core + m * f_fast) * f_fast / f_slow, solved for m
    memory_s = base.core_cpi * (ratio - speedup) / (ratio * (speedup - 1.0)) / 1e9
    return Work(base.core_cpi, memory_s / base.miss_s, base.miss_s, base.clocks_hz)


def seen(work, *positions, windows=4, at_s=0.0, types=2):
    """Its profile after ``windows`` windows on each of these core types, in this order."""
    known = CounterProfile((None,) * types)
    for position in positions:
        for _ in range(windows):
            at_s += 2.5
            known = with_window(known, position, work.window(position), at_s)
    return known


def platform(ratio=2.375, miss_s=80e-9, se_ratio=0.05, nominal_ips=2e9):
    """A host with two core types and a known cost of a miss."""
    clocks = (1e9, ratio * 1e9)
    types = (
        CoreType("slow", 1.0, nominal_ips=nominal_ips),
        CoreType("fast", ratio, nominal_ips=nominal_ips and nominal_ips * ratio),
    )
    return Platform(types, tuple(MissCost(miss_s * hz, se_ratio) for hz in clocks))
