# SPDX-License-Identifier: Apache-2.0
"""When the agent sends host reports, and what they say."""

import queue
import types
from dataclasses import replace

import pytest

pytest.importorskip("oslo_messaging")

from amp_nova.agent import threads
from amp_nova.agent.loop import Loop
from amp_nova.agent.publish import host_reports
from amp_nova.agent.publish.host_info import HostInfo, host_report
from amp_nova.agent.publish.host_reports import Publisher, scheduler_probe
from amp_nova.flavor.extra_specs import parse
from amp_nova.profiling.profiles import VcpuProfile
from amp_nova.profiling.speedup import SpeedupEstimate
from amp_nova.scheduling import demands, host_fit
from amp_nova.wire.encoding import decode, encode
from amp_nova.wire.host_report import Origin, Speedup
from tests.support import hosts, reports
from tests.support.fakehost import Node
from tests.support.programs import until
from tests.support.reports import best_effort, booked, instance

INFO = HostInfo("host1")


class FakeBus:
    """Collects what is sent, and fails as often as it is told to."""

    def __init__(self):
        self.sent = queue.Queue()
        self.failures = 0
        self.deaf = False

    def send(self, report):
        if self.failures:
            self.failures -= 1
            raise OSError("the broker is down")
        self.sent.put(decode(report))

    def probe(self):
        if self.deaf:
            raise TimeoutError

    def listen(self, publish):
        self.request = publish

    def stop(self):
        pass

    def next(self):
        return self.sent.get(timeout=10)

    def is_quiet(self):
        with pytest.raises(queue.Empty):
            self.sent.get(timeout=0.2)
        return True


@pytest.fixture
def bus():
    return FakeBus()


@pytest.fixture
def publisher(bus, monkeypatch):
    monkeypatch.setattr(host_reports, "GAP_LEAST_S", 0.01)
    monkeypatch.setattr(threads, "BACK_OFF_S", 0.01)
    options = types.SimpleNamespace(interval_s=3600.0)
    made = Publisher(options, "host1", bus, answer_spread_s=0.0)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def probe(bus, monkeypatch):
    monkeypatch.setattr(host_reports, "PROBE_S", 0.01)
    monkeypatch.setattr(threads, "BACK_OFF_S", 0.01)
    made = scheduler_probe(bus)
    made.start()
    yield made
    made.stop()


def cycle(*vcpus):
    """A cycle that found one instance with these vCPUs."""
    return reports.cycle(instance(*vcpus))


def measured(vcpu, ratio):
    """The vCPU with a measured speedup."""
    return replace(vcpu, profile=VcpuProfile(speedup=SpeedupEstimate(ratio, 0.1, "sampling")))


def test_a_change_of_bookings_is_sent_at_once(publisher, bus):
    """A change of measurements alone waits for the next periodic report."""
    publisher.offer(cycle(booked()), INFO)
    assert [v.refcores for v in bus.next().instances[0].vcpus] == [0.5]

    publisher.offer(cycle(measured(booked(), 1.5)), INFO)
    assert bus.is_quiet()
    publisher.offer(cycle(measured(booked(), 1.5), best_effort(1)), INFO)
    vcpus = bus.next().instances[0].vcpus
    assert [v.refcores for v in vcpus] == [0.5, None]
    assert vcpus[0].speedup == Speedup(1.5, 0.1)


def test_a_request_is_answered_with_the_current_state(publisher, bus):
    """Reports are numbered, so that readers can tell which one is newer."""
    publisher.offer(cycle(booked()), INFO)
    first = bus.next()
    bus.request()
    second = bus.next()

    assert second.same_state(first)
    assert (first.origin.sequence, second.origin.sequence) == (1, 2)
    assert first.origin.boot_id == second.origin.boot_id


def test_an_unreachable_broker_gets_the_current_state_later(publisher, bus, caplog):
    """One line says that it is unreachable, however often it fails."""
    bus.failures = 3
    publisher.offer(cycle(booked()), INFO)

    assert bus.next().instances
    assert caplog.text.count("the broker is down") == 1


def test_that_no_scheduler_answers_is_known_until_one_does(probe, bus):
    """The thread that asks has no success meanwhile, and says why."""
    until(lambda: probe.last_success_s, 10, "an answer")

    bus.deaf = True
    until(lambda: probe.failure == "TimeoutError", 10, "a failure")
    bus.deaf = False
    until(lambda: not probe.failure, 10, "an answer")


WHOLE_SLOW = {"amp:pref_core": "1", "amp:core_type": "slow"}
"""The fake node has two slow cores; two vCPUs of this flavor fill them."""


def refused(loop):
    """Why a scheduler that has this host's report refuses one more vCPU on a slow core."""
    report = decode(encode(host_report(loop.cycle(), INFO, Origin("host1", "run", 1, 0.0))))
    request = demands.request_of(parse(WHOLE_SLOW, 1))
    return host_fit.fit(host_fit.capacity_of(report), request).refused


def test_a_stopped_instance_is_reported_with_its_booking_and_without_a_place():
    """Nova starts it again without asking the scheduler, also after the agent has restarted."""
    host = hosts.FakeHost()
    host.add("booked", {"pref_core.0": "0.5"}, vcpus=2)
    host.add("best-effort", {"weight": "2"})
    host.add("wrong", {"pref_core": "lots"})
    for resource in list(host.domains):
        host.stop(resource)

    report = host_report(Loop(host, host).cycle(), INFO, Origin("host1", "boot", 1, 0.0))

    received = decode(encode(report))
    (found,) = received.instances
    assert found.resource == "booked"
    assert [(v.index, v.refcores, v.pcpu) for v in found.vcpus] == [(0, 0.5, None)]
    assert found.vcpus[0].cpus_allowed_list == "0-2"
    assert host_fit.capacity_of(report).refcores == 3.5


def test_that_an_instance_stopped_or_was_deleted_is_reported_at_once(publisher, bus):
    """The periodic report is an hour away."""
    host = hosts.FakeHost()
    host.add("a", {"pref_core": "0.5"})
    loop = Loop(host, host)
    for change in (lambda: None, lambda: host.stop("a"), host.inactive.clear):
        change()
        publisher.offer(loop.cycle(), INFO)
        said = bus.next()
    assert said.instances == ()


def without_groups(node):
    """One vCPU thread is in no CPU cgroup of its own."""
    node.host.stop()
    node.host.start(vcpus=1)
    node.host.plug("instance-00000001", 1, group="emulator")


@pytest.mark.parametrize(
    "fail", [lambda node: node.host.stop(), without_groups], ids=["no process", "no groups"]
)
def test_a_booking_that_cannot_be_read_is_not_offered_again(tmp_path, monkeypatch, fail):
    """The flavor's booking is reported, whatever can be read of the vCPUs, and freed with them."""
    node = Node(tmp_path, monkeypatch)
    node.start(specs=WHOLE_SLOW, cpuset="0-3")
    loop = Loop(node.sensor, node.writer)
    assert refused(loop)

    fail(node)
    assert refused(loop)

    node.libvirt.forget()
    assert refused(loop) is None
