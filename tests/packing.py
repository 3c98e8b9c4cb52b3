"""A host that only packs: the agent's own packing and reports, without time or processes."""

from amp_nova.accounting.accounts import Accounts
from amp_nova.agent.cycle import Cycle
from amp_nova.agent.publish.host_info import HostInfo, host_report
from amp_nova.agent.state import bookings
from amp_nova.control.context import Context, Instance, Terms, VcpuFacts
from amp_nova.control.entitlement import entitle
from amp_nova.control.homes import pack
from amp_nova.model.observation import Domain, DomainReading, Observation, VcpuReading
from amp_nova.profiling.counter_windows import CounterProfile
from amp_nova.profiling.profiles import ProfileEntry, Profiles, VcpuProfile
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import Origin
from tests.host_reports import NOW_S


class PackingHost:
    """A compute host as its agent manages it, after every arrival and departure."""

    def __init__(self, name, topology, reserve_ratio=0.0, policy="amp-vm"):
        self.name, self.topology = name, topology
        self.pcpus = frozenset(p.id for p in topology.pcpus)
        self.info = HostInfo(name, None, reserve_ratio, policy)
        self.domains, self.entitlements, self._packed = {}, {}, {}
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
            before = self.entitlements.get((domain.resource, index))
            kept = before.pcpus if before and before.pcpus else self.pcpus
            yield VcpuReading(index, 0, 0, 0, None, kept, self.pcpus)

    def _observation(self):
        domains = (DomainReading(d, tuple(self._readings(d))) for d in self.domains.values())
        return Observation(0, self.topology, tuple(domains))

    def _pack(self):
        seen = self._observation()
        read = bookings.read({}, seen, adaptive=False)
        instances = [
            Instance(
                d.domain.resource,
                read[d.domain.resource].booking,
                tuple(VcpuFacts(v.index, v.pcpus, v.allowed) for v in d.vcpus),
            )
            for d in seen.domains
        ]
        terms = Terms(self.info.reserve_ratio)
        packed = pack(instances, self.topology, terms, self._packed)
        self._packed = packed.pcpus()
        self.entitlements = entitle(instances, Context(self.topology, terms, packed))

    def unplaced(self):
        """Booked vCPUs that have no place."""
        return [
            key
            for key, entitlement in self.entitlements.items()
            if entitlement.booking.kind != "best_effort" and entitlement.home.pcpu is None
        ]

    def report(self, profile=lambda domain: VcpuProfile()):
        """The encoded host report; ``profile``: what the agent measured of a domain."""
        self._sequence += 1
        seen = self._observation()
        entries = {
            (d.domain.resource, v.index): ProfileEntry(
                "", None, 0, v, CounterProfile(()), profile=profile(d.domain)
            )
            for d in seen.domains
            for v in d.vcpus
        }
        known = Profiles(entries=entries)
        cycle = Cycle(
            seen, bookings.read({}, seen, adaptive=False), Accounts(), known, self.entitlements
        )
        origin = Origin(self.name, "boot", self._sequence, NOW_S, float(self._sequence))
        return encode(host_report(cycle, self.info, origin))
