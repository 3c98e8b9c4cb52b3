"""Simulated clouds: what our filter and weighers are worth beside Nova's defaults.

The same script of arrivals and departures runs through Nova's own handlers with each way of
placing. Hosts are of several makes; instances book reference cores, book instructions per second or
book nothing and gain more or less from fast cores. Every host packs and shares as its agent does
(``control.entitlement``, ``policies.placing.core_shares``), whatever placed the instances, and
reports by the agent's own snapshot. What the cloud does is added up from those shares and from how
each workload *really* depends on the speed of a core, which neither agent nor weigher is told: part
of its time waits for memory, which is the same everywhere. Placement is replaced by its arithmetic,
vCPUs times 4.0 and memory times 1.0. Run it where Nova is installed::

    .venv-nova/bin/python -m pytest tests/benchmarks/test_simulated_clouds.py -s
"""

import itertools
import logging
import random
import statistics
import time
import uuid
from dataclasses import dataclass, replace

import pytest

pytest.importorskip("nova")

import nova.tests.functional  # noqa: F401 - chooses Nova's concurrency mode
from nova import objects
from nova.scheduler import filters, weights
from nova.scheduler.filters.compute_capabilities_filter import ComputeCapabilitiesFilter
from nova.scheduler.host_manager import HostState
from nova.scheduler.weights.cpu import CPUWeigher
from nova.scheduler.weights.ram import RAMWeigher

from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.filters import AmpCapacityFilter
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.weights import AmpEfficiencyWeigher, AmpScalabilityWeigher
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing import core_shares
from amp_nova.profiling.profiles import VcpuProfile
from amp_nova.profiling.speedup import Estimate
from tests import hosts
from tests.benchmarks.scale import scaled
from tests.packing import PackingHost

objects.register_all()
CLOUDS = scaled(
    (
        (100, 4, "amp-vm", (1, 2)),
        (100, 7, "amp-vm", (1,)),
        (100, 4, "amp-fair", (1,)),
        (1000, 4, "amp-vm", (1,)),
    ),
    ((4, 4, "amp-vm", (1,)),),
)
"""Hosts, instances per host, best-effort policy, and seeds: figures are means over them."""
LOOKS = 4
CANDIDATES_MAX = 100
"""So many hosts at random stand for election: ``[scheduler] max_placement_results``, and
``[placement] randomize_allocation_candidates``, which spare 1 000 hosts' schedulers some time."""
ERROR = 0.03
"""How far off measured speedups are, as a standard deviation."""
REFERENCE_IPS = 2e9
MAKES = {
    "slow": ({"slow": (8, 1.0)}, {"slow": 2.0e9}),
    "fast": ({"fast": (6, 2.0)}, {"fast": 3.6e9}),
    "half": ({"slow": (4, 1.0), "fast": (4, 2.0)}, {"slow": 2.0e9, "fast": 4.0e9}),
    "two fast": ({"slow": (6, 1.2), "fast": (2, 3.0)}, {"slow": 2.4e9, "fast": 5.0e9}),
}
"""Core types with how many pCPUs and coefficients; instructions per second of each."""
GIB_PER_PCPU, GIB_PER_VCPU = 8, 2


@dataclass(frozen=True)
class Kind:
    """A flavor with its usual image; ``waits``: the part of its time that waits for memory, on a
    reference core."""

    share: float
    vcpus: int
    specs: dict
    waits: float = 0.2


KINDS = {
    "half a core": Kind(0.20, 2, {"amp:pref_core": "0.5"}),
    "a core": Kind(0.12, 2, {"amp:pref_core": "1"}),
    "a fast core": Kind(0.10, 1, {"amp:pref_core": "1.6"}),
    "one of each": Kind(0.05, 2, {"amp:pref_core.0": "1.5", "amp:pref_core.1": "0.3"}),
    "instructions": Kind(0.10, 2, {"amp:ips": "0.8G"}),
    "many instructions": Kind(0.03, 1, {"amp:ips": "3.7G"}),
    "computes": Kind(0.15, 2, {}, 0.05),
    "serves": Kind(0.15, 4, {}, 0.45),
    "waits": Kind(0.10, 2, {}, 0.85),
}


@dataclass(frozen=True)
class Instance:
    """One instance as it really is."""

    resource: str
    kind: str
    waits: float


def image_of(kind):
    """The image that instances of a kind are made from."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, kind))


def speed(waits, coefficient):
    """How fast it is on a core, over a reference core: only what does not wait gets faster."""
    return 1.0 / ((1.0 - waits) / coefficient + waits)


def script(hosts_count, per_host, seed):
    """Arrivals, and from a full cloud on a departure for each; the same whoever places them."""
    chance, alive = random.Random(seed), []
    full = hosts_count * per_host
    for _ in range(full + full // 4):
        (kind,) = chance.choices(list(KINDS), [k.share for k in KINDS.values()])
        waits = min(max(chance.gauss(KINDS[kind].waits, 0.05), 0.0), 0.95)
        resource = str(uuid.UUID(int=chance.getrandbits(128)))
        alive.append(Instance(resource, kind, waits))
        yield "comes", alive[-1]
        if len(alive) > full:
            yield "goes", alive.pop(chance.randrange(len(alive)))


class Host(PackingHost):
    """A compute host with its agent, and what Nova knows of it."""

    def __init__(self, name, make, policy):
        types, nominal_ips = MAKES[make]
        made = hosts.topology(types)
        rated = tuple(replace(t, nominal_ips=nominal_ips[t.name]) for t in made.core_types)
        super().__init__(name, replace(made, core_types=rated), policy=policy)
        self.instances, self.measured = {}, {}
        self.state = HostState(name, name, uuid.uuid4())
        self.state.vcpus_total = len(self.pcpus)
        self.state.free_ram_mb = len(self.pcpus) * GIB_PER_PCPU * 1024
        self.state.cpu_allocation_ratio, self.state.ram_allocation_ratio = 4.0, 1.0

    def candidate(self, vcpus):
        """What Nova's scheduler has of it for a request, if Placement names it."""
        state = self.state
        if state.vcpus_used + vcpus > state.vcpus_total * state.cpu_allocation_ratio:
            return None
        if state.free_ram_mb < vcpus * GIB_PER_VCPU * 1024:
            return None
        state.allocation_candidates = [{"allocations": {}, "mappings": {"": []}}]
        vars(state).pop("consume_from_request", None)
        return state

    def comes(self, instance, error):
        """It starts; ``error``: how far off the agent will measure its speedup."""
        kind, types = KINDS[instance.kind], self.topology.core_types
        if len(types) > 1:
            fast, slow = (speed(instance.waits, types[at].coefficient) for at in (-1, 0))
            estimate = Estimate(fast / slow * (1.0 + error), ERROR, "sampling")
            self.measured[instance.resource] = VcpuProfile(speedup=estimate)
        self.instances[instance.resource] = instance
        self.add(
            instance.resource,
            kind.specs,
            kind.vcpus,
            flavor_id=instance.kind,
            image=image_of(instance.kind),
        )

    def goes(self, instance):
        """It is deleted, and Nova knows."""
        del self.instances[instance.resource]
        vcpus = KINDS[instance.kind].vcpus
        self.state.vcpus_used -= vcpus
        self.state.free_ram_mb += vcpus * GIB_PER_VCPU * 1024
        self.remove(instance.resource)

    def said(self):
        """Its agent's report."""
        return self.report(lambda domain: self.measured.get(domain.resource, VcpuProfile()))

    def work(self):
        """What it does now, in reference cores: for best effort, for bookings, and what it owes."""
        free = dict.fromkeys(self.pcpus, 1.0)
        best, over, booked = {}, {}, 0.0
        for key, entitlement in self.entitlements.items():
            booking = entitlement.booking
            size = booking.refcores or (booking.ips or 0.0) / REFERENCE_IPS
            if booking.kind == "best_effort":
                best[key] = self.instances[key[0]].waits
            elif entitlement.home.pcpu is None:
                over[key] = size
            else:
                free[entitlement.home.pcpu] -= entitlement.home.cores
                booked += size
        owes = sum(over.values())
        speeds = self._speeds(best, over, free)
        # Who found no room yields as best effort does, and what it does not need others have.
        while sated := [key for key, size in over.items() if speeds[key] >= size]:
            for key in sated:
                booked += over[key]
                self._use(free, key, over.pop(key))
            speeds = self._speeds(best, over, free)
        return {
            "best effort": sum(speeds[key] for key in best),
            "booked": booked + sum(speeds[key] for key in over),
            "owes": owes,
            "over-booked": owes > 0,
        }

    def _use(self, free, key, size):
        """A vCPU that is not packed gets what it books from fragments."""
        pcpus = self.entitlements[key].pcpus
        need, there = size / self._only(pcpus).coefficient, sum(free[p] for p in pcpus)
        for pcpu in pcpus:
            free[pcpu] -= need * free[pcpu] / there

    def _only(self, pcpus):
        return self.topology.only_type(pcpus)

    def _speeds(self, best, over, free):
        """How fast everybody is that shares what bookings leave, as the agent's policy does."""
        views = [VcpuView(key, self.pcpus, self.pcpus) for key in best]
        for key in over:
            pcpus = self.entitlements[key].pcpus or frozenset()
            views.append(VcpuView(key, pcpus, pcpus))
        here = core_shares.shared_capacity(HostView(self.topology, tuple(views), free))
        given = core_shares.evenly(here)
        if self.info.policy != "amp-fair":
            ranks = core_shares.ranked_instances(
                here, lambda v: -best[v.key] if v.key in best else None
            )
            given = core_shares.by_rank(here, ranks)
        return {
            v.key: sum(
                cores * speed(best.get(v.key, 0.0), t.coefficient)
                for cores, t in zip(given.get(v.key, ()), self.topology.core_types, strict=False)
            )
            for v in views
        }


@dataclass(frozen=True)
class Way:
    """A way of placing."""

    name: str
    filters: tuple = ()
    weighers: tuple = (CPUWeigher, RAMWeigher)


OURS = (AmpEfficiencyWeigher, AmpScalabilityWeigher)
WAYS = (
    Way("Nova's defaults"),
    Way("our filter", (AmpCapacityFilter,)),
    Way("filter, weighers beside Nova's", (AmpCapacityFilter,), (CPUWeigher, RAMWeigher, *OURS)),
    Way("filter, our weighers alone", (AmpCapacityFilter,), OURS),
)


class Cloud:
    """Hosts of all makes, and one scheduler worker."""

    def __init__(self, way, count, policy, seed, states):
        self.hosts = {}
        for number, make in zip(range(count), itertools.cycle(MAKES), strict=False):
            self.hosts[f"host{number}"] = Host(f"host{number}", make, policy)
        self.where, self.refused, self._states = {}, 0, states
        self._chance = random.Random(seed)
        self._filters = [f() for f in (ComputeCapabilitiesFilter, *way.filters)]
        self._weighers = [w() for w in way.weighers]
        self._asks = AmpCapacityFilter in way.filters
        for host in self.hosts.values():
            self._hear(host)

    def _hear(self, host):
        """The host's agent reports, if anybody listens."""
        assert not self._asks or self._states.accept(host.said())

    def comes(self, instance):
        """Nova looks for a host and takes the best, whose agent reports it."""
        spec = request(instance)
        vcpus = KINDS[instance.kind].vcpus
        found = [state for h in self.hosts.values() if (state := h.candidate(vcpus))]
        found = self._chance.sample(found, min(len(found), CANDIDATES_MAX))
        found = filters.HostFilterHandler().get_filtered_objects(self._filters, found, spec)
        found = weights.HostWeightHandler().get_weighed_objects(self._weighers, found or [], spec)
        if not found or not found[0].obj.allocation_candidates:
            self.refused += 1
            return
        found[0].obj.consume_from_request(spec)
        host = self.where[instance.resource] = self.hosts[found[0].obj.nodename]
        host.comes(instance, self._chance.gauss(0.0, ERROR))
        self._hear(host)

    def goes(self, instance):
        """It is deleted, if it ever found a host."""
        host = self.where.pop(instance.resource, None)
        if host is not None:
            host.goes(instance)
            self._hear(host)

    def look(self):
        """What a host does now, on the mean of all."""
        works = [host.work() for host in self.hosts.values()]
        return {name: statistics.mean(w[name] for w in works) for name in works[0]}


def request(instance):
    """One instance's request."""
    kind = KINDS[instance.kind]
    return objects.RequestSpec(
        instance_uuid=instance.resource,
        flavor=objects.Flavor(
            name=instance.kind, flavorid=instance.kind, vcpus=kind.vcpus,
            memory_mb=kind.vcpus * GIB_PER_VCPU * 1024, root_gb=0, ephemeral_gb=0, swap=0,
            extra_specs=kind.specs,
        ),
        image=objects.ImageMeta(id=image_of(instance.kind), properties=objects.ImageMetaProps()),
        numa_topology=None,
        pci_requests=objects.InstancePCIRequests(requests=[]),
        scheduler_hints={},
        requested_resources=[],
        num_instances=1,
    )  # fmt: skip


def run(way, count, per_host, policy, seed, server):
    """One cloud through the script; the mean of some looks while instances come and go."""
    states = server.states = HostStates(report_server.CONF, lambda: 0.0)
    cloud, seen = Cloud(way, count, policy, seed, states), []
    for at, (what, instance) in enumerate(script(count, per_host, seed)):
        getattr(cloud, what)(instance)
        if at >= count * per_host and at % (count * per_host // 2 // LOOKS) == 0:
            seen.append(cloud.look())
    return mean(seen) | {"refused": cloud.refused}


def mean(found):
    """Of several figures under the same names."""
    return {name: statistics.mean(f[name] for f in found) for name in found[0]}


@pytest.fixture
def server(monkeypatch):
    """A scheduler process that hears nobody but the benchmark."""
    report_server.CONF([], default_config_files=[])
    report_server._shared = None
    made = report_server.shared()
    monkeypatch.setattr(type(made), "start", lambda self: None)
    logging.disable(logging.INFO)
    yield made
    logging.disable(logging.NOTSET)
    report_server._shared = None


@pytest.mark.parametrize(("count", "per_host", "policy", "seeds"), CLOUDS)
def test_throughput_and_over_bookings(server, count, per_host, policy, seeds):
    """Prints the table, per host; whatever else, with the filter no host is over-booked."""
    print(f"\n{count} hosts, {per_host} instances each, best effort shares by {policy}")
    heads = ("work", "best effort", "booked", "owed", "over-booked", "refused", "took s")
    print(f"{'reference cores per host':<32}" + "".join(f"{head:>12}" for head in heads))
    for way in WAYS:
        began = time.perf_counter()
        found = mean([run(way, count, per_host, policy, seed, server) for seed in seeds])
        took_s = (time.perf_counter() - began) / len(seeds)
        print(
            f"{way.name:<32}{found['best effort'] + found['booked']:>12.3f}"
            f"{found['best effort']:>12.3f}{found['booked']:>12.3f}{found['owes']:>12.3f}"
            f"{found['over-booked']:>12.1%}{found['refused']:>12.0f}{took_s:>12.1f}"
        )
        assert AmpCapacityFilter not in way.filters or found["over-booked"] == 0
