"""What one control cycle found and did: the one thing exporter, status and log read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.accounting.delivery import Account
from amp_nova.control.entitlement import Promise
from amp_nova.model.observation import Domain, VcpuReading
from amp_nova.model.topology import Topology
from amp_nova.profiling.vcpu_profile import VcpuProfile


@dataclass(frozen=True, slots=True)
class VcpuReport:
    """One vCPU after a cycle."""

    reading: VcpuReading
    promise: Promise
    account: Account
    failure: str | None = None
    insight: VcpuProfile = field(default_factory=VcpuProfile)


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
