"""A host that only packs: the agent's own promises and reports, and no time that passes."""

from amp_nova.accounting.delivery import Account
from amp_nova.agent.cycle import CycleReport, DomainReport, Totals, VcpuReport
from amp_nova.agent.publish.host_reports import About, snapshot_of
from amp_nova.control import entitlement
from amp_nova.control.entitlement import Booked, Terms
from amp_nova.flavor.extra_specs import examine
from amp_nova.model.observation import Domain, VcpuReading
from amp_nova.profiling.vcpu_profile import VcpuProfile
from amp_nova.wire.host_report import Origin, encode
from tests.snapshots import NOW_S


class PackingHost:
    """A compute host as its agent has it after every arrival and departure."""

    def __init__(self, name, topology, reserve_ratio=0.0, policy="amp-vm"):
        self.name, self.topology = name, topology
        self.pcpus = frozenset(p.id for p in topology.pcpus)
        self.about = About(name, None, reserve_ratio, policy, "perf")
        self.domains, self.promises = {}, {}
        self._sequence = 0

    def take(self, resource, specs, vcpus=1, **domain):
        """An instance starts."""
        self.domains[resource] = Domain(resource, resource, vcpus, specs, **domain)
        self._pack()

    def lose(self, resource):
        """An instance is gone."""
        del self.domains[resource]
        self._pack()

    def _readings(self, domain):
        for index in range(domain.vcpus):
            had = self.promises.get((domain.resource, index))
            kept = had.grant.pcpus if had and had.grant else self.pcpus
            yield VcpuReading(index, 0, 0, 0, None, kept, self.pcpus)

    def _pack(self):
        booked = [
            Booked(d.resource, examine(d.specs, d.vcpus)[0], list(self._readings(d)))
            for d in self.domains.values()
        ]
        terms = Terms(self.about.reserve_ratio)
        self.promises = entitlement.promises(booked, self.topology, terms, self.promises)

    def homeless(self):
        """vCPUs whose booking found no room."""
        return [
            key
            for key, promise in self.promises.items()
            if promise.booking.kind != "best_effort" and promise.pcpu is None
        ]

    def report(self, insight=lambda domain: VcpuProfile()):
        """What its agent tells the schedulers, as it travels; ``insight``: what it measured."""
        self._sequence += 1
        reports = []
        for domain in self.domains.values():
            found = insight(domain)
            vcpus = tuple(
                VcpuReport(r, self.promises[domain.resource, r.index], Account(), insight=found)
                for r in self._readings(domain)
            )
            reports.append(DomainReport(domain, vcpus))
        cycle = CycleReport(0, self.topology, tuple(reports), 0, Totals(), {})
        origin = Origin(self.name, "boot", self._sequence, NOW_S)
        return encode(snapshot_of(cycle, self.about, origin))
