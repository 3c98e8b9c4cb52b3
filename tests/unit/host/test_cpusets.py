# SPDX-License-Identifier: Apache-2.0
"""Where cpusets let vCPUs run, and so what a host can offer: fake trees of both cgroup versions."""

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.agent.publish.host_info import HostInfo, host_report, unenforced
from amp_nova.host.sensor import THOROUGH_EVERY
from amp_nova.wire.host_report import Origin
from tests.support.fakehost import Node, put, remove

NAME = "instance-00000001"
ORIGIN = Origin("host1", "boot", 1, 0.0)
PIN = '<vcpupin vcpu="1" cpuset="2"/>'


def groups(node):
    """The group of vCPU 0, of its domain, of all guests, and of the whole host."""
    vcpu = node.host.group(NAME, "vcpu0")
    return vcpu, vcpu.parent, vcpu.parent.parent, node.host.mount


def allowed(node):
    """The pCPUs of each vCPU."""
    return [v.allowed for v in node.see().vcpus]


@pytest.mark.parametrize(
    ("said", "confined", "found"),
    [
        ({}, {}, [{0, 1, 2, 3}] * 2),
        ({}, {2: "1,9"}, [{1}] * 2),
        ({"cpuset": "1-2"}, {2: "0-1"}, [{1}] * 2),
        ({"cputune": PIN}, {2: "1-2", 1: "2"}, [{2}] * 2),
        ({}, {2: "0-3", 0: "3"}, [{3}, {0, 1, 2, 3}]),
        ({}, {2: "0-1", 0: "3"}, [{3}, {0, 1}]),
        ({"cpuset": "2-3"}, {2: "0-1"}, [frozenset()] * 2),
        ({}, {2: "odd"}, [{0, 1, 2, 3}] * 2),
        ({}, {2: "", -1: "2-3"}, [{2, 3}] * 2),
    ],
    ids=[
        "no cpusets",
        "AllowedCPUs of the slice",
        "definition and slice",
        "pin, domain and slice",
        "placement auto",
        "a partition of its own",
        "contradiction",
        "unreadable",
        "a slice that nobody filled",
    ],
)
def test_a_cpuset_bounds_what_the_definition_allows(node, said, confined, found):
    """The nearest group that has one decides; pCPU 9 is of an unknown core type."""
    node.start(**said)
    for level, cpus in confined.items():
        node.host.confine(groups(node)[level], cpus)

    assert allowed(node) == found


def test_a_change_of_the_slice_counts_in_the_next_cycle(running):
    """Also for vCPUs that sleep, and if the slice has had no cpuset before."""
    assert running.sensor.observe().usable is None

    for cpus, left in [("1", {1}), ("0-2", {0, 1, 2}), ("0-3", {0, 1, 2, 3})]:
        running.host.confine(groups(running)[2], cpus)
        seen = running.sensor.observe()

        assert [v.allowed for v in seen.domains[0].vcpus] == [left] * 2
        assert seen.usable == left


def test_a_change_of_one_guest_counts_after_a_rescan(running):
    """The groups of single guests are read again in some of them."""
    running.host.confine(groups(running)[1], "2")
    for _ in range(THOROUGH_EVERY):
        running.sensor.reread()
        running.see()

    assert allowed(running) == [{2}] * 2


@pytest.mark.parametrize("name", ["machine.slice", "machine"])
def test_a_host_without_guests_offers_what_their_slice_may_use(node, name):
    """As soon as it exists, and when the last guest has gone; other groups do not count."""
    node.host.confine(node.host.mount / "system.slice", "0")
    assert node.sensor.observe().usable is None
    node.host.confine(node.host.mount / name, "2-3")

    assert node.sensor.observe().usable == {2, 3}
    node.start()
    node.host.confine(groups(node)[2], "2")
    node.see()
    node.libvirt.forget()
    node.host.stop()
    assert node.sensor.observe().usable == {2}


def test_a_domain_that_cannot_be_read_keeps_to_the_slice(node):
    """Its booking is reported on pCPUs where it can run."""
    node.start()
    node.host.confine(groups(node)[2], "1")
    node.see()
    (node.host.run_path / f"{NAME}.pid").unlink()
    remove(node.host.root / "proc/4000")
    node.sensor.reread()

    seen = node.see()

    assert seen.failure
    assert dict(seen.allowed) == {0: {1}, 1: {1}}


def test_a_cpuset_that_the_agent_set_through_libvirt_is_no_bound(node):
    """Pinning a vCPU through libvirt sets that of its group; the next pin may be elsewhere."""
    node.libvirt.writable = True
    node.start()
    vcpu, _, slice_, _ = groups(node)
    node.host.confine(vcpu, "0")
    node.host.confine(slice_, "0-1")

    assert allowed(node) == [{0, 1}] * 2


def test_no_write_is_attempted_that_cannot_succeed(node):
    """Public case: AllowedCPUs=1 on the slice of guests, of which the definitions say nothing.

    The kernel keeps the thread on pCPU 1, whatever is asked. The host offers that one alone.
    """
    node.online = frozenset({0, 1})
    node.start(vcpus=1, specs={"amp:pref_core": "0.4"})
    node.host.confine(groups(node)[2], "1")
    node.kernel.affinity[node.host.tid(0)] = {1}
    node.kernel.twist["affinity"] = {1}
    loop = Loop(node.sensor, node.writer)

    for cycle in [loop.cycle() for _ in range(5)]:
        assert (cycle.outcome.failures, cycle.totals.writes) == ({}, 2)
        assert not any(unenforced(v) for d in cycle.domains for v in d.vcpus)
        assert host_report(cycle, HostInfo("host1"), ORIGIN).bookable == {1}


def test_the_older_file_of_version_1_counts(tmp_path, monkeypatch):
    """Kernels before 3.17 have no ``cpuset.effective_cpus``."""
    node = Node(tmp_path, monkeypatch, version=1)
    node.start()
    put(tmp_path / "sys/fs/cgroup/cpuset/machine/cpuset.cpus", "0,2")

    assert allowed(node) == [{0, 2}] * 2
