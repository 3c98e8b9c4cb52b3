# SPDX-License-Identifier: Apache-2.0
"""Random hosts on which the scheduler admits guests and the agent packs them.

Looks for what must not happen: a vCPU that loses its place, or is packed elsewhere although nothing
happened, and a guest that was admitted and finds no place. Of the latter there are a few on full
hosts if several guests arrive at a time, because the search for a packing has a limit.
"""

import uuid

from msgspec import structs

from amp_nova.accounting.accounts import Accounts
from amp_nova.agent.cycle import Cycle
from amp_nova.agent.publish.host_info import HostInfo, host_report
from amp_nova.agent.state import instances
from amp_nova.control.context import Context, Terms
from amp_nova.control.entitlement import entitle
from amp_nova.control.homes import on_one_type, pack
from amp_nova.flavor.extra_specs import parse
from amp_nova.model import cpulist
from amp_nova.model.allocation import of_host
from amp_nova.model.observation import Domain, DomainReading, Observation, VcpuReading
from amp_nova.profiling.counter_windows import CounterProfile
from amp_nova.profiling.profiles import ProfileEntry, Profiles
from amp_nova.scheduling.demands import request_of
from amp_nova.scheduling.host_fit import capacity_of, fit
from amp_nova.wire.host_report import Origin
from tests.support.host_reports import NOW_S
from tests.support.hosts import smt_host, topology


class PackingHost:
    """A host as its agent packs and reports it, without time or processes."""

    def __init__(self, topology, reserve_ratio, bookable=None, *, one_pcpu=False):
        self.topology = topology
        self.info = HostInfo("host1", bookable, reserve_ratio)
        self.pcpus = self.info.bookable_of(Observation(0, topology, ()))
        self.domains, self.allowed, self.own = {}, {}, {}
        self.entitlements, self.packed = {}, {}
        self._terms = Terms(reserve_ratio, one_pcpu)
        self._sequence = 0

    def add(self, resource, specs, vcpus, allowed=None):
        """An instance starts, on some pCPUs or on all that are bookable."""
        self.domains[resource] = Domain(resource, resource, vcpus, specs)
        self.allowed[resource] = self.pcpus if allowed is None else allowed

    def remove(self, resource):
        """An instance leaves."""
        del self.domains[resource]

    def _readings(self, domain):
        allowed = self.allowed[domain.resource]
        for index in range(domain.vcpus):
            before = self.entitlements.get((domain.resource, index))
            kept = before.pcpus if before and before.pcpus else allowed
            yield VcpuReading(index, 0, 0, 0, None, kept, allowed)

    def _observation(self):
        domains = (DomainReading(d, tuple(self._readings(d))) for d in self.domains.values())
        return Observation(0, self.topology, tuple(domains))

    def cycle(self):
        """The agent packs; gives the booked vCPUs that have no place."""
        seen = self._observation()
        read = instances.read({}, seen, adaptive=False)
        weights = dict.fromkeys(read)
        here = instances.on_host(read, of_host(seen.domains), weights, {}, self.own)
        here = on_one_type(here, self.topology)
        packed = pack(here, self.topology, self._terms, self.packed)
        self.packed = packed.pcpus()
        self.entitlements = entitle(here, Context(self.topology, self._terms, packed))
        return list(packed.packing.unplaced)

    def report(self):
        """The host report."""
        self._sequence += 1
        seen = self._observation()
        entries = {
            (d.domain.resource, v.index): ProfileEntry("", None, 0, v, CounterProfile(()))
            for d in seen.domains
            for v in d.vcpus
        }
        read = instances.read({}, seen, adaptive=False)
        cycle = Cycle(seen, read, Accounts(), Profiles(entries=entries), self.entitlements)
        origin = Origin("host1", "boot", self._sequence, NOW_S)
        return host_report(cycle, self.info, origin)


def some_host(chance):
    """A host with or without SMT, a reserve, and pCPUs that are not for bookings."""
    if chance.random() < 0.6:
        factor = chance.choice([0.0, 0.5, 0.62, 0.83, 1.0, round(chance.uniform(0.1, 1.0), 2)])
        threads = chance.choice([2, 2, 2, 4])
        made = smt_host(chance.randint(1, 4), factor, chance.randint(0, 3), 2.0, threads)
    else:
        types = {"slow": 1.0, "middle": 1.5, "fast": 2.375}
        made = topology({name: (chance.randint(1, 4), types[name]) for name in types})
    pcpus = sorted(p.id for p in made.pcpus)
    bookable = frozenset(pcpus)
    if chance.random() < 0.3:
        bookable = frozenset(chance.sample(pcpus, chance.randint(1, len(pcpus))))
    reserve_ratio = chance.choice([0.0, 0.0, 0.05, 0.2])
    return PackingHost(made, reserve_ratio, bookable, one_pcpu=chance.random() < 0.3)


def some_guest(chance, host):
    """The extra specs of a guest, its vCPUs, and the pCPUs to which Nova pins it."""
    specs = {"amp:pref_core": f"{chance.choice([0.25, 0.3, 0.5, 0.75, 1, 1.5, 2])}"}
    if chance.random() < 0.4:
        specs["amp:pref_core"] = f"{chance.uniform(0.05, 2.0):.2f}"
    if chance.random() < 0.2:
        specs["amp:core_type"] = chance.choice(host.topology.core_types).name
    allowed = host.pcpus
    if chance.random() < 0.5:
        allowed = frozenset(chance.sample(sorted(allowed), chance.randint(1, len(allowed))))
    return specs, chance.randint(1, 3), allowed


def some_coefficients(chance, host):
    """Own coefficients of every vCPU: what its work gains from each core type."""
    return {
        name: {
            index: {
                t.name: t.coefficient * chance.uniform(0.6, 1.4) for t in host.topology.core_types
            }
            for index in range(domain.vcpus)
        }
        for name, domain in host.domains.items()
    }


def admitted(chance, host, most):
    """Guests that the scheduler admits one after the other before the agent sees any of them."""
    report, pending, guests = host.report(), {}, {}
    for _ in range(chance.randint(1, most)):
        specs, vcpus, allowed = some_guest(chance, host)
        request, text = request_of(parse(specs, vcpus)), cpulist.show(allowed)
        there = tuple(structs.replace(v, cpus_allowed_list=text) for v in request.vcpus)
        request = structs.replace(request, vcpus=there)
        if fit(capacity_of(report, pending=pending), request).refused is None:
            name = str(uuid.UUID(int=chance.getrandbits(128)))
            pending[name], guests[name] = (request,), (specs, vcpus, allowed)
    return guests


def events(chance, host, most):
    """What happens on a host before each of the agent's cycles."""
    for _ in range(chance.randint(1, 4)):
        guests = admitted(chance, host, most)
        for name in chance.sample(sorted(guests), len(guests)):
            host.add(name, *guests[name])
            if chance.random() < 0.3:
                yield "came"
        yield from ("came", "nothing", "nothing")
        for name in sorted(host.domains):
            if chance.random() < 0.2:
                host.remove(name)
        yield from ("left", "nothing")
        if chance.random() < 0.2:
            host.own = some_coefficients(chance, host)
            yield "measured"
            host.own = {}
            yield "measured"


def life(chance, most):
    """What happens on one host until one of these does; which, empty if none does.

    At ``most`` so many guests are admitted before the agent sees them.
    ``unplaced``: a guest that the scheduler admitted has no place; ``lost``: one that had a place
    has none; ``moved``: a packing differs from the last one although nothing has happened.
    """
    host = some_host(chance)
    for event in events(chance, host, most):
        before, unplaced = host.packed, host.cycle()
        if unplaced:
            had = any(before.get(key) is not None for key in unplaced)
            return "lost" if had or event != "came" else "unplaced"
        if event == "nothing" and host.packed != before:
            return "moved"
    return ""
