"""What the performance counters say about one vCPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.profiling.counter_windows import CounterProfile
from amp_nova.profiling.speedup import (
    Estimate,
    Platform,
    from_sampling,
    next_coefficient,
    own_coefficient,
    speedup,
)


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


def concluded(
    before: VcpuProfile, platform: Platform, known: CounterProfile, reference: str, now_s: float
) -> VcpuProfile:
    """The profile that follows from a vCPU's windows.

    ``before``: its last profile, whose coefficients stay unless they differ by more than noise;
    ``reference``: the core type of the reference core, which this host may lack.
    """
    types = platform.core_types
    names = [t.name for t in types]
    base = names.index(reference) if reference in names else 0
    own = {}
    for position, core_type in enumerate(types):
        found = own_coefficient(platform, known, position, base, now_s)
        if found is not None and core_type.coefficient is not None:
            in_force = before.coefficients.get(core_type.name, core_type.coefficient)
            own[core_type.name] = next_coefficient(in_force, found[0], found[1].noise)
    now, per_ref_ns = known.now, None
    if now is not None and known.position is not None:
        coefficient = types[known.position].coefficient
        per_ref_ns = None if coefficient is None else now.ips.value / coefficient / 1e9
    return VcpuProfile(
        ipc=now.ipc if now else None,
        score=known.score,
        speedup=speedup(platform, known, len(types) - 1, 0, now_s),
        sampled=from_sampling(platform, known, len(types) - 1, 0, now_s),
        coefficients=own,
        per_ref_ns=per_ref_ns,
    )
