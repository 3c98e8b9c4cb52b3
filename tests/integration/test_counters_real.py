# SPDX-License-Identifier: Apache-2.0
"""Counters on real guests: the plugin against the guests' own counts, and faults."""

import os
import time
from operator import sub

import pytest

from amp_nova.host.counters.sources import Counters
from tests.support.lab import FAST, SLOW, until

pytest.importorskip("libvirt", reason="libvirt-python is not installed")


def counted(guest, seconds=1.5, rounds_min=2000):
    """Per vCPU: instructions counted, over those that the guest itself has counted."""
    from tests.guests.guest import INSTRUCTIONS_PER_ROUND

    def both():
        # Both of one moment: another round in between means that this process was interrupted.
        while True:
            rounds, instructions = guest.rounds(), guest.instructions()
            if guest.rounds() == rounds:
                return instructions, rounds

    guest.nap(0)  # the rounds under way make an error of one: there must be thousands
    before, rounds_before = both()
    time.sleep(seconds)
    until(lambda: min(map(sub, guest.rounds(), rounds_before)) >= rounds_min, 60, "enough rounds")
    after, rounds = both()
    return [
        (after[i] - before[i]) / ((rounds[i] - rounds_before[i]) * INSTRUCTIONS_PER_ROUND)
        for i in range(guest.spec.vcpus)
    ]


@pytest.mark.parametrize(("vcpus", "count"), [(2, ""), (1, "callback")], ids=["inline", "callback"])
def test_the_plugin_counts_what_a_guest_executes(guests, vcpus, count):
    """Every vCPU on its own, within one in a thousand."""
    pins = {0: str(FAST), 1: str(SLOW)}
    guest = guests.guest(
        "counted", vcpus=vcpus, pins={i: pins[i] for i in range(vcpus)}, counter=True, count=count
    )

    assert counted(guest) == pytest.approx([1.0] * vcpus, rel=1e-3)


@pytest.fixture
def host(lab):
    """The sensor as the agent has it, for the guests of this lab; it rescans more often."""
    from amp_nova.host.libvirt.hypervisor import Hypervisor
    from amp_nova.host.machine import OnlineTopology
    from amp_nova.host.sensor import HostPaths, LibvirtSensor
    from amp_nova.model.topology import CoreType, PCpu, Topology

    pcpus = (PCpu(FAST, "only"), PCpu(SLOW, "only"))
    topology = Topology((CoreType("only", 1.0),), pcpus, "only", "test")
    hypervisor = Hypervisor("qemu:///system")
    online = OnlineTopology(lambda: topology, lambda: frozenset({FAST, SLOW}))
    paths = HostPaths(rescan_s=1.0)
    yield LibvirtSensor(hypervisor, online, paths, Counters(retry_s=0.2))
    hypervisor.connection.drop()


def vcpus_of(host, guest):
    """The readings of one guest's vCPUs."""
    for domain in host.observe().domains:
        if domain.domain.resource == guest.resource:
            return domain.vcpus
    return ()


def test_counts_of_a_suspended_guest_stop_until_it_is_resumed(guests, host):
    """No instruction is lost or counted twice."""
    guest = guests.guest("suspended", counter=True)
    key = (guest.resource, 0)
    vcpus_of(host, guest)

    guest.domain.suspend()
    time.sleep(0.1)
    still = host.sample([key])[key].instructions
    time.sleep(0.5)
    assert host.sample([key])[key].instructions == still
    guest.domain.resume()

    until(lambda: host.sample([key])[key].instructions > still, 5, "more instructions")
    assert counted(guest) == pytest.approx([1.0], rel=1e-3)


def test_a_vcpu_that_is_plugged_in_is_counted(guests, host):
    """The file has a line for it from the start."""
    guest = guests.guest("plugged", counter=True, vcpus_max=2)
    assert len(vcpus_of(host, guest)) == 1

    guest.domain.setVcpus(2)

    # It waits for its start-up interrupt, which this guest sends only once: no instruction yet.
    until(lambda: len(vcpus_of(host, guest)) == 2, 10, "the second vCPU")
    until(lambda: vcpus_of(host, guest)[1].counts is not None, 5, "its counts")
    assert vcpus_of(host, guest)[1].counts.instructions == 0
    assert counted(guest) == pytest.approx([1.0], rel=1e-3)


@pytest.mark.fault("plugin's counter file damaged", "it is reported until it is replaced")
def test_garbage_in_the_file_is_reported_until_it_is_replaced(guests, host):
    """Uncounted with a reason; with the right file it is counted again. Others always are."""
    guest = guests.guest("garbage", counter=True)
    other = guests.guest("other", counter=True, cpuset=str(SLOW))
    path = guest.spec.counter_path
    right = path.with_suffix(".right")
    path.rename(right)
    path.write_bytes(os.urandom(4096))
    try:
        assert "not written by the plugin" in vcpus_of(host, guest)[0].uncounted
        assert counted(other) == pytest.approx([1.0], rel=1e-3)
        right.rename(path)
        until(lambda: vcpus_of(host, guest)[0].counts is not None, 5, "counts")
    finally:
        right.unlink(missing_ok=True)
    guest.domain.destroy()
    until(lambda: not path.exists(), 5, "the end of the file with its guest")
