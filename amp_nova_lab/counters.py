# SPDX-License-Identifier: Apache-2.0
"""What a vCPU's performance counters show: a physical model of cycles and cache misses.

Instructions follow from the speed of the work: ``reference_ips`` times the coefficient of the
slowest core type times the speed of the workload there. Cycles come from a core that alternates
between computing and waiting for memory. Each instruction has a core part, in cycles, the same on
every core, and a memory part, in seconds, which a faster clock does not shorten. Coefficients are
taken as ratios of clocks, so the workload's own speedup tells how much of its time is memory time.
On a core type whose clock is given, however, cycles are that clock times the time it ran.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.model.topology import Topology
from amp_nova_lab.scenarios.workload import Turn

REFERENCE_IPS = 2.0e9
"""Instructions per second of the reference core where the topology does not state it."""
CORE_CPI = 0.5
"""Cycles per instruction of the core part."""
CORE_PART_LEAST = 0.05
"""Minimum share of cycles in the core part, so that cycles per instruction stay finite."""
MISS_CYCLES = 100.0
"""Cycles of the slowest core type that one cache miss takes."""


def reference_ips(topology: Topology) -> float | None:
    """Nominal instructions per second of the reference core; ``None``: unknown."""
    for core_type in topology.core_types:
        if core_type.nominal_ips is not None and core_type.coefficient:
            return core_type.nominal_ips / core_type.coefficient
    return None


@dataclass(frozen=True, slots=True)
class Rates:
    """What the counters gain per second of running on one core type."""

    instructions: float
    cycles: float
    cache_misses: float


def memory_part(speedup: float, gain: float) -> float:
    """Share of a workload's time on the slowest type that is spent on memory, 0 to 1.

    ``speedup``: the workload's, on a core type that is ``gain`` times as fast without memory.
    """
    if gain <= 1.0:
        return 0.0
    return min(1.0, max(0.0, (gain - speedup) / (speedup * (gain - 1.0))))


def rates(
    topology: Topology,
    speeds: tuple[float, ...],
    ipc: Mapping[str, float],
    ipc_ratio: float = 1.0,
) -> tuple[Rates, ...]:
    """Rates of a workload with these ``speeds``, by core type, slowest first.

    ``ipc``: instructions per cycle by core type, if the scenario gives them. ``ipc_ratio``: the
    workload's current IPC over its usual one, apart from clock and cache misses.
    """
    types = topology.core_types
    slowest = types[0].coefficient or 1.0
    slowest_ips = (reference_ips(topology) or REFERENCE_IPS) * slowest
    gains = [(t.coefficient or slowest) / slowest for t in types]
    memory = memory_part(speeds[len(types) - 1], gains[-1])
    cpi = CORE_CPI / max(1.0 - memory, CORE_PART_LEAST)
    if types[0].name in ipc:
        cpi = 1.0 / ipc[types[0].name]
    by_type = []
    for core_type, speed, gain in zip(types, speeds, gains, strict=False):
        instructions = slowest_ips * speed * ipc_ratio
        here = cpi * (1.0 - memory + memory * gain)
        if core_type.name in ipc:
            here = 1.0 / ipc[core_type.name]
        cycles = instructions * here / ipc_ratio
        if core_type.clock_calibrated and core_type.clock_hz is not None:
            cycles = core_type.clock_hz
        by_type.append(Rates(instructions, cycles, instructions * cpi * memory / MISS_CYCLES))
    return tuple(by_type)


@dataclass(frozen=True, slots=True)
class Counting:
    """How well the host counts.

    ``works``: whether it counts at all. ``noise_ratio``: standard deviation of cycles and cache
    misses over their value; instructions have none. The same ``seed`` gives the same noise.
    """

    works: bool = True
    noise_ratio: float = 0.0
    seed: int = 0


class CounterModel:
    """The counters of one guest's vCPUs."""

    def __init__(
        self, topology: Topology, counting: Counting, name: str, ipc: Mapping[str, float]
    ) -> None:
        """``name`` seeds the noise of this guest; ``ipc`` is the workload's."""
        self.works = counting.works
        self._topology = topology
        self._ipc = ipc
        self._noise_ratio = counting.noise_ratio
        self._random = random.Random(f"{counting.seed} {name} counters")
        self._rates: dict[tuple[tuple[float, ...], float], tuple[Rates, ...]] = {}

    def rates(self, turn: Turn) -> tuple[Rates, ...]:
        """What the counters gain per second on every core type, slowest first."""
        key = turn.speeds, turn.ipc_ratio
        if key not in self._rates:
            self._rates[key] = rates(self._topology, turn.speeds, self._ipc, turn.ipc_ratio)
        return self._rates[key]

    def noise(self) -> tuple[float, float]:
        """Random factors on the cycles and the cache misses that are gained."""
        if not (spread := self._noise_ratio):
            return 1.0, 1.0
        gauss = self._random.gauss
        return max(0.0, gauss(1.0, spread)), max(0.0, gauss(1.0, spread))
