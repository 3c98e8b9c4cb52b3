# SPDX-License-Identifier: Apache-2.0
"""The record of one control cycle, which metrics, status, host reports and the log read."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from amp_nova.accounting.accounts import Accounts, of_instance
from amp_nova.accounting.delivery import Account, Ratios
from amp_nova.control.context import Instances
from amp_nova.control.entitlement import Entitlement
from amp_nova.model.allocation import NOTHING_DONE, Allocations, Changes, Failure, Outcome
from amp_nova.model.observation import Domain, DomainReading, Observation, VcpuKey, VcpuReading
from amp_nova.model.topology import Topology
from amp_nova.profiling.profiles import Profiles, VcpuProfile

STAGES = ("observe", "account", "decide", "apply")


@dataclass(frozen=True, slots=True)
class VcpuRecord:
    """One vCPU after a cycle; ``failure``: why it could not be changed, ``None`` if it could."""

    reading: VcpuReading
    entitlement: Entitlement
    account: Account = field(default_factory=Account)
    failure: str | None = None
    profile: VcpuProfile = field(default_factory=VcpuProfile)


@dataclass(frozen=True, slots=True)
class DomainRecord:
    """One domain after a cycle.

    ``ratios``: histogram of its vCPUs' delivered ratios; ``problem``: why its booking, or a part of
    it, is not enforced.
    """

    domain: Domain
    vcpus: tuple[VcpuRecord, ...]
    ratios: Ratios = field(default_factory=Ratios)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """What the loop has counted since it started."""

    cycles: int = 0
    writes: int = 0
    plans_rejected: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    drift: Mapping[str, int] = field(default_factory=dict)
    migrations: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def with_writes(self, writes: int, failures: Iterable[Failure]) -> "Totals":
        """These counts with some writes, and the failures of others."""
        by_reason = Counter(f.reason for f in failures)
        counts = Counter(self.failures) + by_reason if by_reason else self.failures
        return replace(self, writes=self.writes + writes, failures=counts)


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one control cycle observed, concluded, decided and did.

    ``stage_s``: seconds that each of ``STAGES`` took; ``policy``: the best-effort policy in force.
    """

    observation: Observation
    instances: Instances
    accounts: Accounts
    profiles: Profiles
    entitlements: Mapping[VcpuKey, Entitlement]
    changes: Changes = field(default_factory=Changes)
    outcome: Outcome = NOTHING_DONE
    totals: Totals = field(default_factory=Totals)
    stage_s: Mapping[str, float] = field(default_factory=dict)
    policy: str = "none"

    @property
    def time_ns(self) -> int:
        """Time of the observation, on the sensor's clock."""
        return self.observation.time_ns

    @property
    def topology(self) -> Topology:
        """The host's core types and pCPUs."""
        return self.observation.topology

    @property
    def domains(self) -> tuple[DomainRecord, ...]:
        """The record by domain and vCPU; computed at each call."""
        return tuple(self._domain(d) for d in self.observation.domains)

    def _domain(self, domain: DomainReading) -> DomainRecord:
        resource = domain.domain.resource
        vcpus = []
        for reading in domain.vcpus:
            key = (resource, reading.index)
            failure = self.outcome.failures.get(key)
            vcpus.append(
                VcpuRecord(
                    reading,
                    self.entitlements[key],
                    self.accounts.of(key),
                    failure.message if failure else None,
                    self.profiles.of(key),
                )
            )
        ratios = of_instance(v.account.ratios for v in vcpus)
        problem = self.instances[resource].problem or domain.failure
        return DomainRecord(domain.domain, tuple(vcpus), ratios, problem)


def counted(
    totals: Totals, topology: Topology, before: Allocations, changes: Changes, outcome: Outcome
) -> Totals:
    """The counts, with the changes of one cycle added."""
    totals = replace(totals, cycles=totals.cycles + 1)
    if not changes:
        return totals
    migrations = Counter(totals.migrations)
    writes = len(changes.cpu_weights) - len(outcome.weight_failures)
    for change in changes.vcpus:
        if change.key in outcome.failures:
            continue
        writes += len(change.steps)
        for step in change.steps:
            if step.pcpus is not None:
                old = topology.only_type(before[change.key].pcpus)
                new = topology.only_type(step.pcpus)
                if old is not None and new is not None and old is not new:
                    migrations[old.name, new.name] += 1
    failures = (*outcome.failures.values(), *outcome.weight_failures.values())
    return replace(totals, migrations=migrations).with_writes(writes, failures)
