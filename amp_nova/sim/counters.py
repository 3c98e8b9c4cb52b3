"""What a vCPU's performance counters would say: a physical model of cycles and cache misses.

Instructions follow from the speed of the work: ``reference_ips`` times the coefficient of the
slowest core type times the speed of the workload there. Cycles follow from a core that computes and
waits for memory by turns: per instruction a core part in cycles, which is the same on every core,
and a memory part in seconds, which a faster clock does not shorten. Coefficients are taken for
ratios of clocks, so a workload's own speedup says how much of its time is memory's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.model.topology import Topology

REFERENCE_IPS = 2.0e9
"""Instructions per second of the reference core where a scenario does not say."""
CORE_CPI = 0.5
"""Cycles per instruction of the core part."""
CORE_PART_LEAST = 0.05
"""Share of its cycles in which any workload computes, even one that gains nothing: keeps the
cycles per instruction finite."""
MISS_CYCLES = 100.0
"""Cycles of the slowest core type that one cache miss takes."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What counters gain in a second of running on one core type."""

    instructions: float
    cycles: float
    cache_misses: float


def memory_part(speedup: float, gain: float) -> float:
    """Share of a workload's time on the slowest type that is memory's, 0 to 1.

    ``speedup`` is its own on a core type that is ``gain`` times as fast for work without memory.
    """
    if gain <= 1.0:
        return 0.0
    return min(1.0, max(0.0, (gain - speedup) / (speedup * (gain - 1.0))))


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the model needs to know of a host."""

    topology: Topology
    reference_ips: float = REFERENCE_IPS

    def rates(
        self, speeds: tuple[float, ...], ipc: Mapping[str, float], ipc_ratio: float = 1.0
    ) -> tuple[Rates, ...]:
        """Gains by core type, slowest first, of a workload that is so fast there.

        ``ipc``: instructions per cycle where they are known better; ``ipc_ratio``: how far the
        workload is from its usual IPC just now, which neither clock nor cache misses explain.
        """
        types = self.topology.core_types
        slowest = types[0].coefficient or 1.0
        gains = [(t.coefficient or slowest) / slowest for t in types]
        memory = memory_part(speeds[len(types) - 1], gains[-1])
        cpi = CORE_CPI / max(1.0 - memory, CORE_PART_LEAST)
        if types[0].name in ipc:
            cpi = 1.0 / ipc[types[0].name]
        made = []
        for core_type, speed, gain in zip(types, speeds, gains, strict=False):
            instructions = self.reference_ips * slowest * speed * ipc_ratio
            here = cpi * (1.0 - memory + memory * gain)
            if core_type.name in ipc:
                here = 1.0 / ipc[core_type.name]
            made.append(
                Rates(
                    instructions,
                    instructions * here / ipc_ratio,
                    instructions * cpi * memory / MISS_CYCLES,
                )
            )
        return tuple(made)
