"""Behaviours for tests: what counters would say of work with a known share of memory time.

The physics is written out here once more, apart from the package's: a core computes, then waits.
"""

from dataclasses import dataclass

from amp_nova.model.topology import CoreType
from amp_nova.profiling.counter_windows import Behaviour, Window, learn
from amp_nova.profiling.speedup import Miss, Platform


@dataclass(frozen=True)
class Work:
    """Cycles of computing and misses per instruction; ``miss_s`` each, on cores of these clocks."""

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
        """What is to be estimated."""
        return self.ips(-1) / self.ips(0)

    def window(self, position, run_s=2.0, off=1.0, off_misses=1.0):
        """Two seconds of it; ``off`` is by how much instructions are off this time."""
        instructions = self.ips(position) * run_s * off
        cycles, misses = self.clocks_hz[position] * run_s, self.misses * instructions * off_misses
        return Window(2.0, run_s, round(instructions), round(cycles), round(misses))


def work_of(speedup, ratio=2.375, **more):
    """Work whose speed-up is this."""
    usual = Work(clocks_hz=(1e9, ratio * 1e9), **more)
    # speedup = (core + m * f_slow) / (core + m * f_fast) * f_fast / f_slow, solved for m
    memory_s = usual.core_cpi * (ratio - speedup) / (ratio * (speedup - 1.0)) / 1e9
    return Work(usual.core_cpi, memory_s / usual.miss_s, usual.miss_s, usual.clocks_hz)


def seen(work, *positions, windows=4, at_s=0.0, types=2):
    """Its behaviour after so many windows on each of these types, in this order."""
    known = Behaviour((None,) * types)
    for position in positions:
        for _ in range(windows):
            at_s += 2.5
            known = learn(known, position, work.window(position), at_s)
    return known


def platform(ratio=2.375, miss_s=80e-9, se_ratio=0.05, nominal_ips=2e9):
    """A host with two core types of which the cost of a miss is known that well."""
    clocks = (1e9, ratio * 1e9)
    types = (
        CoreType("slow", 1.0, nominal_ips=nominal_ips),
        CoreType("fast", ratio, nominal_ips=nominal_ips and nominal_ips * ratio),
    )
    return Platform(types, tuple(Miss(miss_s * hz, se_ratio) for hz in clocks))
