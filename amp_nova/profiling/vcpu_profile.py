"""What the performance counters say about one vCPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.profiling.speedup import Estimate


@dataclass(frozen=True, slots=True)
class VcpuProfile:
    """What the performance counters say about one vCPU; ``None``: unknown."""

    ipc: float | None = None
    """Instructions per cycle while it ran, smoothed."""
    score: float | None = None
    """Fast-core efficiency: IPC x utilization (kwon2011)."""
    speedup: Estimate | None = None
    """The most certain estimate of its speed on the fastest core type over the slowest."""
    sampled: Estimate | None = None
    """The estimate from its rates on both core types, if it ran on both."""
    coefficients: Mapping[str, float] = field(default_factory=dict)
    """Its own coefficients, by name of the core type."""
    per_ref_ns: float | None = None
    """Instructions per nanosecond of CPU time over the core type's coefficient: ranks vCPUs where
    cycles are not counted."""
