# SPDX-License-Identifier: Apache-2.0
"""Other writers of the limits: told, counted, and not fought over."""

from dataclasses import replace

import pytest
from msgspec import structs

from amp_nova.control import foreign_changes
from amp_nova.control.context import Share
from amp_nova.control.entitlement import Entitlement
from amp_nova.control.foreign_changes import ForeignChanges, differences
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.allocation import Allocation
from tests.support import hosts
from tests.support.hosts import allocations, limit

KEY = ("vm", 0)
MINUTE_S = 60.0
BOOKING = VcpuBooking(0, 0.5)


def expected(pcpus=(0, 1), allowed=(0, 1, 2), governed_by="booking", **limited):
    """``limit`` in ``limited``: what its share comes to; without one, it is not limited."""
    more = {"share": Share(), **limited} if limited else {}
    return Entitlement(
        KEY, BOOKING, frozenset(allowed), frozenset(pcpus), governed_by=governed_by, **more
    )


def now_at(pcpus, bandwidth=None, allowed=(0, 1, 2)):
    """What is in force for one vCPU."""
    return Allocation(frozenset(pcpus), bandwidth, frozenset(allowed))


class Watch:
    """The state that the loop carries from cycle to cycle."""

    def __init__(self):
        self.state = ForeignChanges()

    def expect(self, seen, *entitlements):
        wanted = {e.key: e for e in entitlements}
        self.state = foreign_changes.expect(self.state, wanted, allocations(seen), ())

    def compare(self, seen):
        self.state = foreign_changes.compare(self.state, seen, allocations(seen), {})


@pytest.fixture
def host():
    """One vCPU that is limited to half of a slow core."""
    host = hosts.FakeHost()
    host.add("vm")
    return host


@pytest.fixture
def watch(host):
    """A state that knows what was written."""
    watch = Watch()
    watch.compare(host.observe())
    repair(watch, host)
    return watch


def repair(watch, host):
    """What the loop does: it writes what the vCPU is entitled to, and remembers that."""
    host.vcpu("vm").pcpus = frozenset({0, 1})
    host.vcpu("vm").bandwidth = hosts.limit(0.5)
    watch.expect(host.observe(), expected(limit=hosts.limit(0.5)))


def meddle(host, cores=0.9):
    host.vcpu("vm").bandwidth = hosts.limit(cores)


def excluded(watch, host, seconds=1.0):
    """Whether the instance is excluded after one more comparison."""
    host.wait(seconds)
    watch.compare(host.observe())
    return "vm" in watch.state.excluded


def test_now_and_then_is_repaired_for_ever(watch, host):
    """Three changes a minute are repaired without end."""
    for _ in range(20):
        meddle(host)
        assert not excluded(watch, host, MINUTE_S / 3)
        repair(watch, host)

    assert watch.state.counts["quota"] == 20


def test_a_backoff_is_of_one_instance_and_ends_with_it(watch, host):
    """Changes of one instance do not exclude another."""
    host.add("other")
    for _ in range(4):
        repair(watch, host)
        meddle(host)
        excluded(watch, host)
    assert watch.state.excluded.keys() == {"vm"}

    gone = host.domains.pop("vm")
    watch.compare(host.observe())
    host.domains["vm"] = gone
    watch.compare(host.observe())

    assert not watch.state.excluded


HALF = limit(0.5)
BURST = structs.replace(now_at([0, 1], limit(0.5)), burst_us=1)


@pytest.mark.parametrize(
    ("wanted", "now", "written", "causes"),
    [
        (expected(limit=HALF), now_at([0, 1], limit(0.5)), None, ()),
        (expected(), now_at([0, 1], limit(0.5)), None, ()),  # a limit that was never amp-nova's
        (expected(limit=HALF), now_at([2], limit(0.9)), None, ("quota", "affinity")),
        (expected([2], limit=None), now_at([2], limit(0.9)), None, ("quota",)),
        (expected(limit=limit(0.9)), now_at([2], limit(0.9)), None, ("affinity",)),
        (expected(), now_at([1], allowed=[1, 2]), None, ()),  # Nova allows other pCPUs now
        (expected(governed_by="flavor", allowed=(0, 1)), now_at([1]), None, ()),
        (expected(governed_by="flavor", allowed=(0, 1)), now_at([2]), None, ("affinity",)),
        (expected(limit=HALF), BURST, None, ("burst",)),  # the kernel would refuse a lower quota
        (expected(), BURST, None, ()),
        # A limit is compared with what was written last, if it was between cycles.
        (expected(limit=HALF, governed_by="ips"), now_at([0, 1], limit(0.7)), limit(0.7), ()),
        (
            expected(limit=HALF, governed_by="ips"),
            now_at([0, 1], limit(0.7)),
            limit(0.6),
            ("quota",),
        ),
    ],
)
def test_what_differs_from_what_is_expected(wanted, now, written, causes):
    """Of limit, affinity and burst."""
    assert differences(wanted, now, written or wanted.limit) == causes


def test_after_the_guard_acted_nothing_is_a_foreign_change(host, watch):
    """What is found then is adopted."""
    watch.state = watch.state.adopting()
    meddle(host)

    assert not excluded(watch, host)
    assert dict(watch.state.counts) == {}


def without(host, *offline):
    """The host while these pCPUs are offline."""
    online = frozenset(p.id for p in host.topology.pcpus) - set(offline)
    return replace(host.observe(), topology=host.topology.with_online(online))


def test_what_the_kernel_does_with_hotplug_is_nobodys_change(watch, host):
    """Offline, it moves a thread without any pCPU left; online again, it shows what was hidden."""
    host.vcpu("vm").pcpus = frozenset({2})
    watch.compare(without(host, 0, 1))
    watch.expect(without(host, 0, 1), expected(pcpus={2}))
    host.vcpu("vm").pcpus = frozenset({0, 1, 2})
    watch.compare(host.observe())

    assert (dict(watch.state.counts), dict(watch.state.instances)) == ({}, {})


def test_a_move_elsewhere_during_hotplug_is_somebodys(watch, host):
    """Only pCPUs that came or went are the kernel's doing."""
    host.vcpu("vm").pcpus = frozenset({0})
    watch.compare(without(host, 2))

    assert watch.state.counts == {"affinity": 1}
