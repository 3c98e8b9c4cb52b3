"""The scheduler's host fit and the agent's packing always agree."""

import copy
import uuid
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from amp_nova.accounting.accounts import Accounts
from amp_nova.agent.cycle import Cycle
from amp_nova.agent.publish.host_info import HostInfo, host_report
from amp_nova.agent.state import bookings
from amp_nova.control.context import Context, Instance, Terms, VcpuFacts
from amp_nova.control.entitlement import entitle
from amp_nova.control.homes import pack
from amp_nova.flavor.extra_specs import parse
from amp_nova.hardware.effective_speed import SMT_MODES, for_admission
from amp_nova.model.observation import Domain, DomainReading, Observation, VcpuReading
from amp_nova.profiling.counter_windows import CounterProfile
from amp_nova.profiling.profiles import ProfileEntry, Profiles
from amp_nova.scheduling.demands import request_of
from amp_nova.scheduling.host_fit import fit, headroom_of, quick_fit, quick_fit_of
from amp_nova.wire.encoding import decode, encode
from amp_nova.wire.host_report import Origin
from tests.host_reports import NOW_S
from tests.hosts import smt_host, topology

FLAVORS = (
    (1, {"amp:pref_core": "0.5"}),
    (2, {"amp:pref_core": "0.7"}),
    (1, {"amp:pref_core": "1.6"}),
    (2, {"amp:pref_core.0": "1.2", "amp:pref_core.1": "0.3"}),
    (1, {"amp:pref_core": "0.4", "amp:core_type": "fast"}),
    (2, {"amp:ips": "0.8G"}),
    (1, {"amp:ips": "2.9G"}),
    (2, {"amp:ips.0": "3.7G", "amp:pref_core.1": "0.25"}),
    (1, {"amp:pref_core": "1"}),
    (2, {"amp:pref_core": "1"}),
    (1, {"amp:pref_core": "0.45"}),
    (1, {"amp:pref_core": "1.95"}),
    (1, {"amp:pref_core": "2"}),
    (1, {"amp:ips": "4G"}),
)


class PackingHost:
    """A host as its agent packs and reports it, without time or processes."""

    def __init__(self, topology, reserve_ratio):
        self.topology = topology
        self.pcpus = frozenset(p.id for p in topology.pcpus)
        self.info = HostInfo("host1", None, reserve_ratio)
        self.domains, self.entitlements, self._packed = {}, {}, {}
        self._sequence = 0

    def add(self, resource, specs, vcpus):
        """An instance starts."""
        self.domains[resource] = Domain(resource, resource, vcpus, specs)
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

    def report(self):
        """The encoded host report."""
        self._sequence += 1
        seen = self._observation()
        entries = {
            (d.domain.resource, v.index): ProfileEntry("", None, 0, v, CounterProfile(()))
            for d in seen.domains
            for v in d.vcpus
        }
        read = bookings.read({}, seen, adaptive=False)
        cycle = Cycle(seen, read, Accounts(), Profiles(entries=entries), self.entitlements)
        origin = Origin("host1", "boot", self._sequence, NOW_S, float(self._sequence))
        return encode(host_report(cycle, self.info, origin))


@st.composite
def hosts(draw):
    """A few slow and fast pCPUs whose nominal Ips do not follow their coefficients.

    Some fast cores have two hardware threads.
    """
    counts = draw(st.tuples(st.integers(1, 3), st.integers(1, 2)))
    fast = draw(st.sampled_from([1.5, 2.0, 3.0]))
    made = draw(
        st.sampled_from(
            [
                topology({"slow": (counts[0], 1.0), "fast": (counts[1], fast)}),
                smt_host(counts[1], draw(st.sampled_from([0.5, 0.62])), counts[0], fast),
            ]
        )
    )
    made = for_admission(made, draw(st.sampled_from(SMT_MODES)))
    rates = 2e9, draw(st.sampled_from([3e9, 4e9, 5e9]))
    rated = (replace(t, nominal_ips=r) for t, r in zip(made.core_types, rates, strict=True))
    return replace(made, core_types=tuple(rated)), draw(st.sampled_from([0.0, 0.05, 0.1]))


@given(hosts(), st.lists(st.sampled_from(FLAVORS) | st.integers(0, 20), max_size=25))
def test_the_filter_passes_a_host_if_and_only_if_the_agent_can_pack_it(host, events):
    """After any sequence of arrivals and departures."""
    agent = PackingHost(*host)
    for number, event in enumerate(events):
        if isinstance(event, int):
            if agent.domains:
                agent.remove(sorted(agent.domains)[event % len(agent.domains)])
            continue
        vcpus, specs = event
        headroom = headroom_of(decode(agent.report()))
        request = request_of(parse(specs, vcpus))
        found = fit(headroom, request)
        assert quick_fit_of(request)(headroom) == quick_fit(headroom, request)
        after = copy.deepcopy(agent)
        name = str(uuid.uuid5(uuid.NAMESPACE_DNS, str(number)))  # in no order
        after.add(name, specs, vcpus)
        assert (found.refused is None) == (after.unplaced() == []), (specs, found)
        if found.refused is None:
            agent = after
