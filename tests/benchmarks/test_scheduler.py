# SPDX-License-Identifier: Apache-2.0
"""What the filter and the weighers cost Nova's scheduler, beside Nova's own in the same run.

Through Nova's own handlers and host states, with 20 instances on every host. *Cold* is the first
request for a flavor after every host reported a new state. A weigher is measured after the filter,
as in Nova. Run it where Nova is installed::

    .venv-nova/bin/python -m pytest tests/benchmarks/test_scheduler.py
"""

import gc
import json
import os
import random
import time
import tracemalloc
import uuid
from collections import defaultdict
from operator import truediv
from statistics import median

import pytest
from msgspec import structs

pytest.importorskip("nova")

import nova.tests.functional  # noqa: F401 - chooses Nova's concurrency mode
from nova import objects
from nova.scheduler import filters, weights
from nova.scheduler.filters import aggregate_instance_extra_specs as aggregate_specs
from nova.scheduler.filters import numa_topology_filter
from nova.scheduler.host_manager import HostState
from nova.scheduler.weights import cpu as cpu_weight
from oslo_messaging._drivers.common import serialize_msg

from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.filters import AmpCapacityFilter
from amp_nova.nova_plugins.weights import AmpEfficiencyWeigher, AmpScalabilityWeigher
from amp_nova.scheduling.pending import Pending
from amp_nova.wire import topics
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import ReportedInstance, ReportedVcpu, Speedup
from tests.support import hosts
from tests.support.host_reports import host_report, request
from tests.support.nova_requests import flavor, request_spec
from tests.support.scheduler import alone

objects.register_all()
HOSTS, REPEATS = 1000, 15
PENDING = [0, 4] if "AMP_NOVA_PENDING" in os.environ else [4]
"""Pending instances on each host: with some, a request takes as long or longer."""
PCPUS = 32
TOPOLOGY = hosts.topology({"slow": (16, 1.0), "fast": (16, 2.0)})
ALL = f"0-{PCPUS - 1}"
SPECS = {"amp:pref_core": "0.5"}


def some_id(name):
    """An id as long as Nova's are."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def instances(host):
    """Twenty instances of two vCPUs: half of them book, half are best effort and measured."""
    found = []
    for number in range(20):
        booked = ReportedVcpu(0, 0.5, cpus_allowed_list=ALL, core_type="slow", pcpu=number % 16)
        free = ReportedVcpu(
            0, None, None, ALL, utilization_ratio=0.9213, speedup=Speedup(1 + number / 20, 0.0523)
        )
        vcpu = booked if number % 2 else free
        name, flavor, image = map(some_id, (f"{host}-{number}", "flavor", "image"))
        vcpus = (vcpu, structs.replace(vcpu, index=1))
        found.append(ReportedInstance(name, vcpus, flavor=flavor, image=image))
    return found


def text_of(number, sequence=1):
    """A host's report, encoded."""
    seen = host_report(
        *instances(number),
        node=f"host{number}",
        topology=TOPOLOGY,
        sequence=sequence,
        time_s=time.time(),
    )
    return encode(seen)


def host_state(number):
    """Nova's state of a host."""
    host = HostState(f"host{number}", f"host{number}", uuid.uuid4())
    host.vcpus_total, host.vcpus_used = PCPUS, 20
    host.cpu_allocation_ratio = host.ram_allocation_ratio = 4.0
    host.aggregates, host.instances = [], {}
    return host


@pytest.fixture(scope="module")
def states():
    """Nova's states of all hosts."""
    return [host_state(number) for number in range(HOSTS)]


@pytest.fixture
def reported(monkeypatch):
    """The states that a scheduler process has of hosts, which receives no other reports."""
    report_server.CONF([], default_config_files=[])
    report_server._shared = None
    server = report_server.shared()
    monkeypatch.setattr(server.states, "_known", lambda _node: True)
    alone(server)
    yield server.states
    report_server._shared = None


def spent_s(plugin, states, specs):
    """CPU time of a filter or a weigher, through Nova's handler; sorting is part of it."""
    for host in states:  # with candidates, and unchanged by earlier requests
        host.allocation_candidates = [{"allocations": {}, "mappings": {"": []}}]
        vars(host).pop("consume_from_request", None)
    handle = (
        filters.HostFilterHandler().get_filtered_objects
        if isinstance(plugin, filters.BaseHostFilter)
        else weights.HostWeightHandler().get_weighed_objects
    )
    spec = request_spec(flavor(specs, vcpus=2))
    began_s = time.process_time()
    found = handle([plugin], states, spec)
    took_s = time.process_time() - began_s
    assert len(found) == len(states)
    return took_s


def test_cost_per_host(within, states, reported):
    """Ours over Nova's simplest of the same kind, of cached and of new states."""
    plugins = {
        "filter": (AmpCapacityFilter(), SPECS),
        "filter_without_keys": (AmpCapacityFilter(), {}),
        "efficiency": (AmpEfficiencyWeigher(), SPECS),
        "scalability": (AmpScalabilityWeigher(), SPECS),
        "Nova's filter": (aggregate_specs.AggregateInstanceExtraSpecsFilter(), SPECS),
        "Nova's weigher": (cpu_weight.CPUWeigher(), SPECS),
    }
    for number in range(HOSTS):
        assert reported.accept(text_of(number))
    found = defaultdict(list)
    gc.collect()  # the reports' own garbage is no plugin's
    for _ in range(REPEATS):
        for name, (plugin, specs) in plugins.items():
            for entry in reported._entries.values():
                entry.results.clear()
            if isinstance(plugin, weights.BaseHostWeigher):
                spent_s(AmpCapacityFilter(), states, SPECS)
            found[f"{name}_cold"].append(spent_s(plugin, states, specs))
            found[name].append(spent_s(plugin, states, specs))

    def over(name, rival):  # of the same moment: this machine's speed changes within seconds
        return median(a / b for a, b in zip(found[name], found[rival], strict=True))

    for name in ("filter", "filter_cold", "filter_without_keys"):
        within(f"{name}_over_nova", over(name, "Nova's filter"))
    for when in ("", "_cold"):
        ratios = [over(f"{name}{when}", "Nova's weigher") for name in ("efficiency", "scalability")]
        within(f"weigher{when}_over_nova", max(ratios))


def test_cost_of_a_report(within, states, reported):
    """To accept it, beside Python's own decoder; on the wire; and in memory."""
    accepted_s, decoded_s = [], []
    for sequence in range(1, REPEATS + 1):
        texts = [text_of(number, sequence) for number in range(100)]
        began_s = time.process_time()
        for text in texts:
            assert reported.accept(text)
        between_s = time.process_time()
        for text in texts:
            json.loads(text)
        accepted_s.append(between_s - began_s)
        decoded_s.append(time.process_time() - between_s)
    within("report_over_json", median(map(truediv, accepted_s, decoded_s)))

    call = {"method": "report", "args": {"snapshot": texts[0]}, "namespace": topics.NAMESPACE}
    call |= {"version": topics.RPC_VERSION, "_unique_id": uuid.uuid4().hex}
    within("report_bytes", len(json.dumps(serialize_msg(call))))

    tracemalloc.start()
    for number in range(100, 400):
        assert reported.accept(text_of(number))
    spent_s(AmpCapacityFilter(), states[100:400], SPECS)
    spent_s(AmpEfficiencyWeigher(), states[100:400], SPECS)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    within("host_kib", used / 300 / 1024)


CELLS = 2
FULL = hosts.topology({"core": (64, 1.0)})
SMT = hosts.smt_host(32)


def fragmented(host, topology, least=0.56, most=0.62):
    """A booking on each pCPU that leaves too little of it, though much on all of them."""
    draw = random.Random(host)
    found = []
    for pcpu in topology.pcpus:
        core_type = topology.type_of(pcpu.id)
        size = round(draw.uniform(least, most), 3)
        vcpu = ReportedVcpu(0, size, None, "0-63", core_type.name, pcpu.id)
        found.append(ReportedInstance(f"{host}-{pcpu.id}", (vcpu,)))
    return found


def numa_cells(pcpus):
    """The cells of a host with two sockets."""
    each = pcpus // CELLS
    return objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=n,
                cpuset=set(range(n * each, (n + 1) * each)),
                pcpuset=set(),
                memory=1 << 16,
                cpu_usage=0,
                memory_usage=0,
                siblings=[],
                pinned_cpus=set(),
                mempages=[objects.NUMAPagesTopology(size_kb=4, total=1 << 24, used=0)],
                network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
                socket=n,
            )
            for n in range(CELLS)
        ]
    )


def request_s(plugin, states, specs, vcpus, numa):
    """CPU time of one request: the filter, and the hosts to which Nova turns until one is free."""
    for host in states:
        host.allocation_candidates = [{"allocations": {}, "mappings": {"": []}}]
        vars(host).pop("consume_from_request", None)
    spec = request_spec(flavor(specs, vcpus))
    if numa:
        cell = objects.InstanceNUMACell(id=0, cpuset=set(range(vcpus)), pcpuset=set(), memory=64)
        spec.numa_topology = objects.InstanceNUMATopology(cells=[cell])
    began_s = time.process_time()
    passed = filters.HostFilterHandler().get_filtered_objects([plugin], states, spec)
    if isinstance(plugin, AmpCapacityFilter):
        next((host for host in passed or () if host.allocation_candidates), None)
    return time.process_time() - began_s


@pytest.mark.parametrize("numa", [False, True], ids=["", "numa"])
@pytest.mark.parametrize(
    ("name", "topology", "specs", "vcpus", "least"),
    [
        ("free", FULL, {"amp:pref_core": "0.3"}, 2, 0.56),
        ("fragmented", FULL, {"amp:pref_core": "0.45"}, 1, 0.56),
        ("smt", SMT, {"amp:pref_core.0": "0.3", "amp:pref_core.1": "0.7"}, 2, 0.3),
        ("smt_whole_cores", SMT, {"amp:pref_core": "1.6"}, 2, 0.3),
        ("smt_fragmented", SMT, {"amp:pref_core": "0.9"}, 1, 0.56),
    ],
)
@pytest.mark.parametrize("pending", PENDING)
def test_a_request_for_many_hosts_takes_a_bounded_time(
    within, reported, name, topology, specs, vcpus, least, numa, pending
):
    """Whatever the hosts are like, and whatever an image asks for; Nova's filter beside it."""
    for number in range(HOSTS):
        there = fragmented(number, topology, least)
        text = encode(host_report(*there, node=f"host{number}", topology=topology))
        assert reported.accept(text)
    states = [host_state(number) for number in range(HOSTS)]
    for host in states:
        host.numa_topology, host.pci_stats, host.limits = numa_cells(64), None, {}
    ours, novas = AmpCapacityFilter(), numa_topology_filter.NUMATopologyFilter()
    took_s = []
    for _ in range(3):
        for number in range(HOSTS):
            reported._entries[f"host{number}"].results.clear()
            for at in range(pending):
                each = Pending((request(pref_core=0.05),), 0.0)
                reported.decided(f"host{number}", f"{number}-new{at}", each)
        took_s.append(request_s(ours, states, specs, vcpus, numa))
    novas_s = request_s(novas, states, specs, vcpus, True)
    print(f"{name}: {1e3 * min(took_s):.0f} ms, Nova's filter of NUMA guests {1e3 * novas_s:.0f}")
    within("request_ms", 1e3 * min(took_s))
