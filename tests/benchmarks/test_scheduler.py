"""What the filter and the weighers cost Nova's scheduler, compared with Nova's own in the same run.

Through Nova's own handlers and host states, with 20 instances on every host. *Cold*: the first
request for a flavor after every host reported a new state; *again*: the same flavor while nothing
changed; *apart*: after another instance was sent to one host in twenty. A weigher is measured after
the filter, as in Nova. Figures are medians of CPU time; ours and Nova's are measured in turn.
Run it where Nova is installed::

    .venv-nova/bin/python -m pytest tests/benchmarks/test_scheduler.py -s
"""

import functools
import gc
import json
import statistics
import time
import tracemalloc
import uuid
from collections import defaultdict

import pytest

pytest.importorskip("nova")

import nova.tests.functional  # noqa: F401 - chooses Nova's concurrency mode
from nova import objects
from nova.scheduler import filters, weights
from nova.scheduler.filters import aggregate_instance_extra_specs as aggregate_specs
from nova.scheduler.filters import numa_topology_filter
from nova.scheduler.host_manager import HostState
from nova.scheduler.weights import cpu as cpu_weight
from oslo_messaging._drivers.common import serialize_msg

from amp_nova.flavor.extra_specs import parse
from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.filters import AmpCapacityFilter
from amp_nova.nova_plugins.pending import Pending
from amp_nova.nova_plugins.weights import (
    AmpEfficiencyWeigher,
    AmpScalabilityWeigher,
)
from amp_nova.scheduling.demands import request_of
from amp_nova.wire import topics
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import ReportedInstance, ReportedVcpu, Speedup
from tests import hosts
from tests.benchmarks.scale import scaled
from tests.host_reports import host_report

objects.register_all()
SIZES = scaled((10, 1000, 10_000), (10,))
PCPUS = 32
TYPES = {"slow": (16, 1.0), "fast": (16, 2.0)}
TOPOLOGY = hosts.topology(TYPES)
ALL = f"0-{PCPUS - 1}"
SPECS = {"amp:pref_core": "0.5"}
NUMA = {"hw:numa_nodes": "1"}
REPEATS = 7
NUMA_REPEATS = 3
OUR_FILTER = "AmpCapacityFilter"
OURS = (OUR_FILTER, "AmpEfficiencyWeigher", "AmpScalabilityWeigher")


def some_id(name):
    """An id as long as Nova's are."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def instances(host):
    """Twenty instances of two vCPUs: half of them book, half are best effort and measured."""
    found = []
    for number in range(20):
        name = some_id(f"{host}-{number}")
        if number % 2:
            pcpu = number % 16
            vcpus = tuple(
                ReportedVcpu(i, 0.5, cpus_allowed_list=ALL, core_type="slow", pcpu=pcpu)
                for i in range(2)
            )
        else:
            vcpus = tuple(
                ReportedVcpu(
                    i, None, None, ALL, utilization_ratio=0.9213,
                    speedup=Speedup(1.0 + number / 20, 0.0523),
                )
                for i in range(2)
            )  # fmt: skip
        found.append(
            ReportedInstance(name, vcpus, flavor=some_id("flavor"), image=some_id("image"))
        )
    return found


@functools.cache
def made_states(count):
    """Nova's state of as many hosts."""
    made = []
    for number in range(count):
        host = HostState(f"host{number}", f"host{number}", uuid.uuid4())
        cells = [
            objects.NUMACell(
                id=cell,
                cpuset=set(range(cell * 16, cell * 16 + 16)),
                pcpuset=set(),
                memory=65536,
                cpu_usage=0,
                memory_usage=0,
                mempages=[],
                siblings=[],
                pinned_cpus=set(),
                socket=cell,
            )
            for cell in range(2)
        ]
        host.numa_topology = objects.NUMATopology(cells=cells)
        host.vcpus_total, host.vcpus_used = PCPUS, 20
        host.cpu_allocation_ratio = host.ram_allocation_ratio = 4.0
        host.aggregates = []
        host.instances = {}
        made.append(host)
    return made


def host_states(count):
    """Host states as a request finds them: with candidates, and unchanged by earlier requests."""
    for host in made_states(count):
        host.allocation_candidates = [{"allocations": {}, "mappings": {"": []}}]
        vars(host).pop("consume_from_request", None)
    return made_states(count)


def request(specs):
    """A request for one instance of two vCPUs."""
    flavor = objects.Flavor(
        name="f", flavorid="f", vcpus=2, memory_mb=512, root_gb=0, ephemeral_gb=0, swap=0,
        extra_specs=specs,
    )  # fmt: skip
    numa = None
    if specs is NUMA:
        numa = objects.InstanceNUMATopology(
            cells=[
                objects.InstanceNUMACell(
                    id=0, cpuset={0, 1}, pcpuset=set(), memory=512, pagesize=None, cpu_policy=None,
                    cpu_thread_policy=None,
                )
            ]
        )  # fmt: skip
    return objects.RequestSpec(
        instance_uuid=str(uuid.uuid4()),
        flavor=flavor,
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        numa_topology=numa,
        pci_requests=objects.InstancePCIRequests(requests=[]),
        scheduler_hints={},
        requested_resources=[],
        num_instances=1,
    )


def filtered(filter_, count, specs):
    """Microseconds per host of one filter, through Nova's handler."""
    states, spec = host_states(count), request(specs)
    began = time.process_time()
    passed = filters.HostFilterHandler().get_filtered_objects([filter_], states, spec)
    took_s = time.process_time() - began
    assert len(passed) == count
    return took_s / count * 1e6


def weighed(weigher, count, specs):
    """Microseconds per host of one weigher, through Nova's handler; sorting is part of it."""
    states, spec = host_states(count), request(specs)
    began = time.process_time()
    ranked = weights.HostWeightHandler().get_weighed_objects([weigher], states, spec)
    took_s = time.process_time() - began
    assert len(ranked) == count
    return took_s / count * 1e6


def report_all(states, count, sequence):
    """Every host reports; the microseconds and the bytes of one report."""
    texts = []
    for number in range(count):
        seen = host_report(
            *instances(number), node=f"host{number}", topology=TOPOLOGY, policy="amp-vm",
            sequence=sequence, time_s=time.time(),
        )  # fmt: skip
        texts.append(encode(seen))
    began = time.process_time()
    for text in texts:
        assert states.accept(text)
    return (time.process_time() - began) / count * 1e6, statistics.mean(map(len, texts))


def on_the_wire(number):
    """Bytes of a report as oslo.messaging sends it: JSON in JSON in JSON."""
    text = encode(host_report(*instances(number), topology=TOPOLOGY, policy="amp-vm"))
    call = {"method": "report", "args": {"snapshot": text}, "namespace": topics.NAMESPACE}
    call |= {"version": topics.RPC_VERSION, "_unique_id": uuid.uuid4().hex}
    return len(json.dumps(serialize_msg(call)))


def change_all(states):
    """Discard cached results, as if every host had just reported a new state."""
    for entry in states._entries.values():
        entry.results.clear()


def send_some(states, count, round_):
    """Send another instance to one host in twenty."""
    request = request_of(parse({"amp:pref_core": "0.1"}, 1))
    for number in range(0, count, 20):
        states.decided(f"host{number}", f"sent-{round_}-{number}", Pending(request, 0.0))


def memory(states, count):
    """Bytes per host, with all cached results."""
    tracemalloc.start()
    report_all(states, count, 1)
    filtered(AmpCapacityFilter(), count, SPECS)
    weighed(AmpEfficiencyWeigher(), count, SPECS)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / count


@pytest.fixture
def server(monkeypatch):
    """A scheduler process that receives reports from the benchmark only."""
    report_server.CONF([], default_config_files=[])
    report_server._shared = None
    made = report_server.shared()
    monkeypatch.setattr(type(made), "start", lambda self: None)
    yield made
    report_server._shared = None


def plugins():
    """What is measured: name, ``filtered`` or ``weighed``, plugin, extra specs."""
    aggregates = aggregate_specs.AggregateInstanceExtraSpecsFilter()
    return (
        (OUR_FILTER, filtered, AmpCapacityFilter(), SPECS),
        ("Nova's AggregateInstanceExtraSpecsFilter", filtered, aggregates, SPECS),
        ("AmpEfficiencyWeigher", weighed, AmpEfficiencyWeigher(), SPECS),
        ("AmpScalabilityWeigher", weighed, AmpScalabilityWeigher(), SPECS),
        ("Nova's CPUWeigher", weighed, cpu_weight.CPUWeigher(), SPECS),
        (f"{OUR_FILTER}, no amp:* key", filtered, AmpCapacityFilter(), {}),
    )


def filter_before(part, count):
    """Nova filters before it weighs, so a weigher finds what the filter computed."""
    if part is weighed:
        filtered(AmpCapacityFilter(), count, SPECS)


def measured(states, count):
    """The median microseconds per host of each plugin, in turn so that noise falls on all alike."""
    found = defaultdict(list)
    made = plugins()
    gc.collect()  # the reports' own garbage is no plugin's
    for _ in range(REPEATS):
        for name, part, plugin, specs in made:
            ours = name in OURS
            if ours:
                change_all(states)
                filter_before(part, count)
                found[f"{name}, cold"].append(part(plugin, count, specs))
            found[f"{name}, again" if ours else name].append(part(plugin, count, specs))
    for round_ in range(REPEATS):
        for name, part, plugin, specs in made:
            if name in OURS:
                send_some(states, count, f"{name}{round_}")
                filter_before(part, count)
                found[f"{name}, apart"].append(part(plugin, count, specs))
    # Apart from the others: it takes so long that the CPU's caches forget what the next one needs.
    numa = numa_topology_filter.NUMATopologyFilter()
    found["Nova's NUMATopologyFilter"] = [filtered(numa, count, NUMA) for _ in range(NUMA_REPEATS)]
    return {name: statistics.median(values) for name, values in found.items()}


def test_cost_per_host(server):
    """Prints the table; asserts nothing about time."""
    print(f"\n{'us per host':<44}" + "".join(f"{size:>10}" for size in SIZES))
    rows = defaultdict(list)
    for size in SIZES:
        states = server.states = type(server.states)(report_server.CONF)
        took, length = report_all(states, size, 1)
        for name, value in (*measured(states, size).items(), ("a report, accepted", took)):
            rows[name].append(value)
    for name, values in rows.items():
        print(f"{name:<44}" + "".join(f"{value:>10.2f}" for value in values))
    states = server.states = type(server.states)(report_server.CONF)
    print(f"a report: {length:.0f} bytes, {on_the_wire(1)} on the wire")
    print(f"cache: {memory(states, 500) / 1024:.1f} KiB per host")
