"""What one control cycle found and did: the one thing exporter, status and log read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.core.account import Account
from amp_nova.core.contract import Promise
from amp_nova.core.estimate import Estimate
from amp_nova.core.observation import Domain, VcpuReading
from amp_nova.core.topology import Topology


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


@dataclass(frozen=True, slots=True)
class VcpuReport:
    """One vCPU after a cycle."""

    reading: VcpuReading
    promise: Promise
    account: Account
    failure: str | None = None
    insight: Insight = field(default_factory=Insight)


@dataclass(frozen=True, slots=True)
class DomainReport:
    """One domain after a cycle. ``problem``: why its booking is not kept as a whole."""

    domain: Domain
    vcpus: tuple[VcpuReport, ...]
    ratios: tuple[int, ...] = ()
    """Counts of delivered ratios by bucket of ``account.RATIO_BUCKETS``."""
    ratio_sum: float = 0.0
    problem: str | None = None
    yields: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """What the loop counted since it began."""

    cycles: int = 0
    writes: int = 0
    plans_rejected: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    drift: Mapping[str, int] = field(default_factory=dict)
    migrations: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cycle:
    """One control cycle in short; ``CycleReport`` says what it found of every instance.

    ``stage_s``: what its parts took and, as ``report``, what reports took since the one before.
    ``promises``: the same object as long as everybody is promised what they were before.
    """

    time_ns: int
    topology: Topology
    stage_s: Mapping[str, float]
    promises: object


@dataclass(frozen=True, slots=True)
class CycleReport:
    """One control cycle, at ``time_ns`` of the sensor's clock."""

    time_ns: int
    topology: Topology
    domains: tuple[DomainReport, ...]
    changes: int
    totals: Totals
    stage_s: Mapping[str, float]
    coefficient_drift: Mapping[str, float] = field(default_factory=dict)
    """Speed-up that guests show over the one that coefficients say, by core type where known."""
