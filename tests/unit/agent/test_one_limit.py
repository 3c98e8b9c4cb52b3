"""The loop where one limit serves all vCPUs of an instance, as where libvirt writes it."""

import pytest

from amp_nova.agent.operator import status
from amp_nova.control.context import Terms
from tests.hosts import FakeHost, state
from tests.unit.agent.test_loop import cycles, loop


@pytest.fixture
def host():
    """Two slow pCPUs (0, 1), a fast one (2)."""
    return FakeHost()


def agent(host):
    """A loop as with ``writer = libvirt``."""
    return loop(host, terms=Terms(one_limit=True))


def test_refused_bookings_are_left_alone_and_status_says_why(host):
    """Others are enforced all the same, and have precedence over best effort."""
    host.add("differ", {"pref_core": "0.5", "pref_core.1": "0.2"}, vcpus=2)
    host.add("same", {"pref_core": "0.5"}, vcpus=2)
    host.add("free")

    report = cycles(agent(host), host, 3)

    found = state(host)
    assert found["differ", 0] == ([0, 1, 2], None)
    assert found["same", 0][1] == found["same", 1][1] == 0.5
    weights = {name: domain.cpu_weight for name, domain in host.domains.items()}
    assert weights == {"differ": 100, "same": 1000, "free": 5}
    refused, *_ = (i for i in status.status(report) if i["instance"] == "differ")
    for vcpu in refused["vcpus"]:
        assert vcpu["note"].startswith("not enforced: the bookings of its vCPUs differ")
    assert any("differ" in line for line in status.explain(report, "differ")["because"])


def test_refused_bookings_keep_their_capacity(host):
    """What the scheduler counted for them is not given to others."""
    host.add("differ", {"pref_core": "0.9", "pref_core.1": "0.8"}, vcpus=2, allowed={0, 1})
    host.add("late", {"pref_core": "0.5"}, allowed={0, 1})

    report = cycles(agent(host), host)

    late, *_ = (i for i in status.status(report) if i["instance"] == "late")
    assert "over-booked" in late["vcpus"][0]["note"]


def test_limits_follow_a_move_of_the_whole_instance(host):
    """Nova or an operator moves both vCPUs to the fast core."""
    host.add("vm", {"pref_core": "0.5"}, vcpus=2)
    running = agent(host)
    cycles(running, host)
    for vcpu in host.domains["vm"].vcpus.values():
        vcpu.allowed = vcpu.pcpus = frozenset({2})

    cycles(running, host)

    assert state(host) == {("vm", 0): ([2], 0.25), ("vm", 1): ([2], 0.25)}
