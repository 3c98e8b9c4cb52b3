"""A host that only packs: the agent's own packing and reports, without time or processes."""

from amp_nova.accounting.delivery import Account
from amp_nova.agent.cycle import CycleReport, DomainReport, Totals, VcpuReport
from amp_nova.agent.publish.host_reports import HostInfo, host_report
from amp_nova.control import entitlement
from amp_nova.control.entitlement import Booked, Terms
from amp_nova.flavor.extra_specs import examine
from amp_nova.model.observation import Domain, VcpuReading
from amp_nova.profiling.insight import Insight
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import Origin
from tests.host_reports import NOW_S


class PackingHost:
    """A compute host as its agent manages it, after every arrival and departure."""

    def __init__(self, name, topology, reserve_ratio=0.0, policy="amp-vm"):
        self.name, self.topology = name, topology
        self.pcpus = frozenset(p.id for p in topology.pcpus)
        self.info = HostInfo(name, None, reserve_ratio, policy, "perf")
        self.domains, self.promises = {}, {}
        self._sequence = 0

    def add(self, resource, specs, vcpus=1, **domain):
        """An instance starts."""
        self.domains[resource] = Domain(resource, resource, vcpus, specs, **domain)
        self._pack()

    def remove(self, resource):
        """An instance leaves."""
        del self.domains[resource]
        self._pack()

    def _readings(self, domain):
        for index in range(domain.vcpus):
            before = self.promises.get((domain.resource, index))
            kept = before.grant.pcpus if before and before.grant else self.pcpus
            yield VcpuReading(index, 0, 0, 0, None, kept, self.pcpus)

    def _pack(self):
        booked = [
            Booked(d.resource, examine(d.specs, d.vcpus)[0], list(self._readings(d)))
            for d in self.domains.values()
        ]
        terms = Terms(self.info.reserve_ratio)
        self.promises = entitlement.promises(booked, self.topology, terms, self.promises)

    def unplaced(self):
        """Booked vCPUs that have no place."""
        return [
            key
            for key, promise in self.promises.items()
            if promise.booking.kind != "best_effort" and promise.pcpu is None
        ]

    def report(self, insight=lambda domain: Insight()):
        """The encoded host report; ``insight``: what the agent measured of a domain."""
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
        return encode(host_report(cycle, self.info, origin))
