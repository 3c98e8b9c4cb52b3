"""What the filter and the weighers cost Nova's scheduler, beside Nova's own in the same run.

Through Nova's own handlers and host states, with 20 instances on every host. *Cold* is the first
request for a flavor after every host reported a new state. A weigher is measured after the filter,
as in Nova. Run it where Nova is installed::

    .venv-nova/bin/python -m pytest tests/benchmarks/test_scheduler.py
"""

import gc
import json
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
from nova.scheduler.host_manager import HostState
from nova.scheduler.weights import cpu as cpu_weight
from oslo_messaging._drivers.common import serialize_msg

from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.filters import AmpCapacityFilter
from amp_nova.nova_plugins.weights import AmpEfficiencyWeigher, AmpScalabilityWeigher
from amp_nova.wire import topics
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import ReportedInstance, ReportedVcpu, Speedup
from tests import hosts
from tests.host_reports import host_report
from tests.nova_requests import flavor, request_spec
from tests.scheduler import alone

objects.register_all()
HOSTS, REPEATS = 1000, 15
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
        policy="amp-vm",
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
