# SPDX-License-Identifier: Apache-2.0
"""A small made-up host for tests of the control loop: a fake ``Sensor`` and ``Actuator`` in memory.

Fake in that nothing runs: a vCPU gets what its limit leaves of what it wants, and never waits for
another one unless a test says so.
"""

from dataclasses import dataclass, field, replace

from amp_nova.control.context import Instance
from amp_nova.exceptions import HypervisorUnavailable
from amp_nova.model import allocation, cpu_weight
from amp_nova.model.allocation import Allocation, Failure, Outcome
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Domain, DomainReading, Observation, VcpuReading
from amp_nova.model.topology import CoreType, PCpu, Topology

HYBRID = {"slow": (2, 1.0), "fast": (1, 2.0)}
"""Core types by name: how many pCPUs, and the coefficient. Ids count up: slow 0 and 1, fast 2."""


def topology(types=None, offline=()):
    """A topology of core types, slowest first, without the pCPUs that are ``offline``."""
    core_types, pcpus, count = [], [], 0
    for name, (number, coefficient) in (types or HYBRID).items():
        core_types.append(CoreType(name, coefficient))
        ids = range(count, count + number)
        pcpus += [PCpu(i, name) for i in ids if i not in offline]
        count += number
    return Topology(
        tuple(core_types), tuple(pcpus), core_types[0].name, "test", tuple(sorted(offline))
    )


def smt_host(cores, factor=0.62, slow=0, coefficient=2.0, threads=2):
    """Fast cores with siblings, numbered one after the other, and slow pCPUs without any."""
    types = [CoreType("slow", 1.0)] if slow else []
    fast = CoreType("fast", coefficient, threads_per_core=threads, smt_busy_factor=factor)
    pcpus = [PCpu(i, "slow", (i,)) for i in range(slow)]
    for core in range(cores):
        first = slow + core * threads
        siblings = tuple(range(first, first + threads))
        pcpus += [PCpu(i, "fast", siblings) for i in siblings]
    return Topology((*types, fast), tuple(pcpus), "slow", "test")


def limit(cores, period_us=100_000):
    """A bandwidth limit of that many cores."""
    return Bandwidth(round(cores * period_us), period_us)


def reading(index=0, pcpus=(0, 1, 2), allowed=(0, 1, 2), bandwidth=None, **seconds):
    """One vCPU's reading; ``run_s``, ``wait_s`` and ``throttled_s`` are 0 if not given."""
    run, wait, throttled = (
        round(seconds.get(name, 0.0) * 1e9) for name in ("run_s", "wait_s", "throttled_s")
    )
    return VcpuReading(index, run, wait, throttled, bandwidth, frozenset(pcpus), frozenset(allowed))


@dataclass
class FakeVcpu:
    """One vCPU: where it may run, its limit, its counters, and the share of time it wants."""

    pcpus: frozenset
    allowed: frozenset
    bandwidth: Bandwidth | None = None
    wants: float = 1.0
    starved: float = 0.0
    """Share of its time that others take from it."""
    run_ns: int = 0
    wait_ns: int = 0
    throttled_ns: int = 0
    uncounted: str | None = None

    def pass_time(self, wall_ns):
        wanted = self.wants * wall_ns
        share = min(1.0, self.bandwidth.cores) if self.bandwidth else 1.0
        ran = min(wanted, share * wall_ns, (1.0 - self.starved) * wall_ns)
        self.run_ns += round(ran)
        self.wait_ns += round(wanted - ran)
        if ran < (1.0 - self.starved) * wall_ns:
            self.throttled_ns += round(wanted - ran)


@dataclass
class FakeDomain:
    """One domain and its vCPUs."""

    domain: Domain
    vcpus: dict
    failure: str | None = None
    cpu_weight: int | None = cpu_weight.DEFAULT


@dataclass
class FakeHost:
    """Sensor and actuator over made-up domains; what was applied is in ``applied``."""

    topology: Topology = field(default_factory=topology)
    time_ns: int = 1_000_000_000
    domains: dict = field(default_factory=dict)
    paused: dict = field(default_factory=dict)
    refuses: set = field(default_factory=set)
    """vCPUs, as (UUID, index), that cannot be changed."""
    available: bool = True
    inactive: list = field(default_factory=list)
    """``Domain`` values that are defined, but do not run."""
    applied: list = field(default_factory=list)

    def add(self, resource, specs=None, vcpus=1, allowed=None, wants=1.0, **domain):
        """Start a domain; ``specs`` are its extra specs, without the prefix ``amp:``."""
        specs = {f"amp:{key}": value for key, value in (specs or {}).items()}
        about = Domain(resource, f"name-{resource}", vcpus, specs, "first", **domain)
        self.domains[resource] = FakeDomain(about, {})
        for index in range(vcpus):
            self.plug(resource, index, allowed, wants)
        return self.domains[resource]

    def plug(self, resource, index, allowed=None, wants=1.0):
        """Add a vCPU to a domain."""
        usual = frozenset(p.id for p in self.topology.pcpus) if allowed is None else allowed
        vcpu = FakeVcpu(frozenset(usual), frozenset(usual), wants=wants)
        self.domains[resource].vcpus[index] = vcpu

    def vcpu(self, resource, index=0):
        return self.domains[resource].vcpus[index]

    def restart(self, resource, incarnation="second"):
        """Another QEMU process: new threads, no limits, counters from zero."""
        found = self.domains[resource]
        found.domain = replace(found.domain, incarnation=incarnation)
        for index, vcpu in found.vcpus.items():
            self.plug(resource, index, vcpu.allowed, vcpu.wants)

    def unplug_pcpus(self, *ids):
        """Take pCPUs offline; the kernel takes them out of every affinity."""
        pcpus = tuple(p for p in self.topology.pcpus if p.id not in ids)
        there = {p.core_type for p in pcpus}
        self.topology = replace(
            self.topology,
            core_types=tuple(t for t in self.topology.core_types if t.name in there),
            pcpus=pcpus,
            offline=tuple(sorted({*self.topology.offline, *ids})),
        )
        for domain in self.domains.values():
            for vcpu in domain.vcpus.values():
                vcpu.allowed -= set(ids)
                vcpu.pcpus = vcpu.pcpus - set(ids) or vcpu.allowed

    def wait(self, seconds=1.0):
        """Let time pass."""
        wall_ns = round(seconds * 1e9)
        self.time_ns += wall_ns
        for domain in self.domains.values():
            for vcpu in domain.vcpus.values():
                vcpu.pass_time(wall_ns)

    def observe(self):
        if not self.available:
            raise HypervisorUnavailable("libvirt does not answer")
        found = []
        for domain in self.domains.values():
            vcpus = tuple(
                VcpuReading(
                    index,
                    v.run_ns,
                    v.wait_ns,
                    v.throttled_ns,
                    v.bandwidth,
                    v.pcpus,
                    v.allowed,
                    uncounted=v.uncounted,
                )
                for index, v in domain.vcpus.items()
            )
            found.append(
                DomainReading(
                    domain.domain,
                    () if domain.failure else vcpus,
                    domain.failure,
                    domain.cpu_weight,
                )
            )
        inactive = tuple(DomainReading(domain, ()) for domain in self.inactive)
        return Observation(self.time_ns, self.topology, tuple(found), dict(self.paused), inactive)

    def stop(self, resource):
        """Stop a domain; it stays defined."""
        self.inactive.append(self.domains.pop(resource).domain)

    def apply(self, changes):
        failures = {}
        for resource, weight in changes.cpu_weights.items():
            self.domains[resource].cpu_weight = weight
        for change in changes.vcpus:
            if change.key in self.refuses:
                failures[change.key] = Failure("refused", "it is read-only")
                continue
            self.applied.append(change)
            vcpu = self.vcpu(*change.key)
            for step in change.steps:
                if step.pcpus is not None:
                    vcpu.pcpus = step.pcpus
                else:
                    vcpu.bandwidth = step.bandwidth
        return Outcome(failures)

    def sample(self, keys):
        """Nothing is counted here."""
        return {}


def instance(name, booking, places, **more):
    """An instance on a host; ``places``: the affinity and the allowed pCPUs of its vCPUs."""
    vcpus = {
        index: Allocation(frozenset(pcpus), None, frozenset(allowed))
        for index, (pcpus, allowed) in places.items()
    }
    return Instance(Domain(name, name, len(vcpus)), booking, vcpus=vcpus, **more)


def allocations(seen):
    """What is in force for every vCPU of an observation."""
    return allocation.of_host(seen.domains)


def state(host):
    """Where every vCPU is kept and how it is limited."""
    return {
        (name, index): (sorted(v.pcpus), v.bandwidth and v.bandwidth.cores)
        for name, domain in host.domains.items()
        for index, v in domain.vcpus.items()
    }
