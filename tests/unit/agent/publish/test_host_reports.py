"""When the agent sends host reports, and what they say."""

import queue
import types
from dataclasses import replace

import pytest

pytest.importorskip("oslo_config")

from amp_nova import conf
from amp_nova.agent import helper_threads
from amp_nova.agent.publish import host_reports
from amp_nova.agent.publish.host_info import HostInfo
from amp_nova.agent.publish.host_reports import Publisher
from amp_nova.agent.publish.outbound import Outbound
from amp_nova.profiling.profiles import VcpuProfile
from amp_nova.profiling.speedup import Estimate
from amp_nova.wire.encoding import decode
from amp_nova.wire.host_report import Speedup
from tests import reports
from tests.reports import best_effort, booked, instance

INFO = HostInfo("host1")


class FakeBus:
    """Collects what is sent, and fails as often as it is told to."""

    def __init__(self):
        self.sent = queue.Queue()
        self.failures = 0

    def send(self, report):
        if self.failures:
            self.failures -= 1
            raise OSError("the broker is down")
        self.sent.put(decode(report))

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
    monkeypatch.setattr(helper_threads, "BACK_OFF_S", 0.01)
    options = types.SimpleNamespace(interval_s=3600.0, answer_spread_s=0.0)
    made = Publisher(options, "host1", bus)
    made.start()
    yield made
    made.stop()


def cycle(*vcpus):
    """A cycle that found one instance with these vCPUs."""
    return reports.cycle(instance(*vcpus))


def measured(vcpu, ratio):
    """The vCPU with a measured speedup."""
    return replace(vcpu, profile=VcpuProfile(speedup=Estimate(ratio, 0.1, "sampling")))


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


def test_an_unhealthy_agent_reports_its_last_state(publisher, bus):
    """Schedulers then know that it is not up to date."""
    publisher.offer(cycle(booked()), INFO)
    healthy = bus.next()
    publisher.mark_unhealthy()
    unhealthy = bus.next()

    assert healthy.healthy
    assert not unhealthy.healthy
    assert unhealthy.instances == healthy.instances


@pytest.mark.parametrize(("in_force", "said"), [("acfs", "acfs:per_vcpu=true"), ("none", "none")])
def test_a_policy_that_compares_vcpus_says_so(tmp_path, monkeypatch, bus, in_force, said):
    """Schedulers divide fast cores as the policy in force does, also after it was dropped."""
    message_bus = pytest.importorskip("amp_nova.agent.publish.message_bus")
    monkeypatch.setattr(message_bus, "connect", lambda conf: object())
    monkeypatch.setattr(message_bus, "MessageBus", lambda transport, node: bus)
    path = tmp_path / "amp-nova.conf"
    lines = ["[agent]", "policy = acfs", "policy_parameter = per_vcpu = True", "[reports]"]
    path.write_text("\n".join([*lines, "transport_url = fake://"]))
    path.chmod(0o640)
    outbound = Outbound(conf.load(files=[str(path)]), lambda: "host1")

    outbound.publish(replace(cycle(best_effort()), policy=in_force))

    assert bus.next().policy == said
    outbound.stop()
