"""What counters tell of one vCPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.profiling.speedup import Estimate


@dataclass(frozen=True, slots=True)
class Insight:
    """What counters tell of one vCPU. ``ipc``: instructions per cycle while it ran, smoothed.

    ``score``: fast-core efficiency, IPC x utilization (kwon2011); ``speedup``: the best estimate of
    its Ips on the fastest core type over the slowest, ``sampled`` that from both rates, where it
    ran on both; ``coefficients``: its own by core type. ``per_ref_ns``: instructions per nanosecond
    of CPU time, over the coefficient of the core type: what stands in for the IPC, to rank by,
    where no cycles are counted.
    """

    ipc: float | None = None
    score: float | None = None
    speedup: Estimate | None = None
    sampled: Estimate | None = None
    coefficients: Mapping[str, float] = field(default_factory=dict)
    per_ref_ns: float | None = None
