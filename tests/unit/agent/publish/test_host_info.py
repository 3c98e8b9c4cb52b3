# SPDX-License-Identifier: Apache-2.0
"""What can still be booked, and why bookings are not kept: by the loop itself."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from msgspec import structs

from amp_nova.agent.loop import Loop
from amp_nova.agent.publish import metrics
from amp_nova.agent.publish.host_info import (
    HostInfo,
    headroom_refcores,
    host_report,
    unclaimed_refcores,
    unenforced,
)
from amp_nova.agent.publish.snapshot import VcpuTotals, snapshot
from amp_nova.wire.host_report import Origin
from amp_nova_lab.counters import Counting
from amp_nova_lab.host import SimHost
from tests.support import hosts, reports
from tests.unit.lab.builders import guest, topology


def cycle(*guests, on=None, counting=None, altered=lambda seen: seen, **host):
    """The first cycle of a loop over a simulated host with these guests.

    ``on``: its topology; ``altered``: what the loop observes instead of an observation.
    """
    simulated = SimHost(on or topology(**host), guests, counting=counting)
    sensor = SimpleNamespace(observe=lambda: altered(simulated.observe()))
    return Loop(sensor, simulated, stopwatch=lambda: 0.0).cycle()


def reasons(found):
    """The reasons of every vCPU, by domain and index."""
    return {
        (d.domain.name, v.reading.index): set(unenforced(v)) for d in found.domains for v in d.vcpus
    }


def test_headroom_is_what_nobody_booked():
    """By core type, in reference cores, without the reserve and pCPUs that Nova may not use."""
    found = cycle(guest(pref_core="1.5"), guest("small", pref_core="0.25"), fast=2, slow=2)

    assert headroom_refcores(found, HostInfo("host")) == pytest.approx({"slow": 1.75, "fast": 2.5})
    less = HostInfo("host", bookable=frozenset({0, 2, 3}), reserve_ratio=0.1)
    assert headroom_refcores(found, less)["slow"] == pytest.approx(2 * 0.9 - 0.25)


@pytest.mark.parametrize(
    ("booked", "left"),
    [
        # An empty core: both threads at 2.0 x 0.6, or one alone at 2.0, whichever is more.
        ((), 2 * 2.4),
        (("0.6",), 2.4 + 1.2 + 0.6),
        # It needs a whole core: what its thread has left may be booked, its sibling may not.
        (("1.5",), 2.4 + 0.5),
        (("1.5", "0.25"), 2.4 + 0.25),
    ],
)
def test_headroom_of_hardware_threads(booked, left):
    """The same as Placement's inventory on an empty host; never what a sibling kept free has."""
    guests = [guest(f"vm{n}", pref_core=refcores) for n, refcores in enumerate(booked)]
    found = cycle(*guests, on=hosts.smt_host(cores=2, factor=0.6))

    assert headroom_refcores(found, HostInfo("host")) == pytest.approx({"fast": left})


@pytest.mark.parametrize(("smt", "left"), [("ignore", 4.0), ("whole_core", 2.0)])
def test_headroom_in_each_smt_mode(smt, left):
    """Both threads count in full if siblings are ignored, one if bookings get whole cores."""
    found = cycle(on=hosts.smt_host(cores=1, factor=0.6))

    assert headroom_refcores(found, HostInfo("host", smt=smt)) == pytest.approx({"fast": left})


@pytest.mark.parametrize(
    ("booked", "reason"),
    [
        ({"pref_core": "1.9"}, {"over_booked"}),
        ({"pref_core": "1", "core_type": "medium"}, {"no_core_type"}),
        ({"pref_core": "0.0001"}, {"below_minimum"}),
        ({}, set()),
    ],
)
def test_what_cannot_be_enforced_has_a_reason(booked, reason):
    """Its neighbour, whose booking fits the host, has none."""
    found = reasons(cycle(guest("fits", pref_core="2"), guest(**booked)))

    assert found == {("fits", 0): set(), ("vm", 0): reason}


@pytest.mark.parametrize("core_type", [None, "fast"])
def test_uncounted_instructions_are_unverifiable(core_type):
    """And nothing else, although its size in reference cores is not known."""
    specs = {"core_type": core_type} if core_type else {}
    uncounted = Counting(works=False)

    found = reasons(cycle(guest(ips="1G", **specs), counting=uncounted))

    assert found == {("vm", 0): {"unverifiable"}}


def test_a_paused_instance_is_excluded():
    """Whatever else would be said of its booking."""
    paused = {"vm": "paused by the operator"}

    found = cycle(guest(pref_core="0.5"), altered=lambda seen: replace(seen, paused=paused))

    assert reasons(found) == {("vm", 0): {"excluded"}}


def test_what_something_else_decides_is_ineffective():
    """And nothing else; a real-time class is one such thing."""

    def scheduled(seen):
        (only,) = seen.domains
        return replace(seen, domains=(structs.replace(only, realtime=frozenset({0})),))

    found = cycle(guest(pref_core="0.5"), altered=scheduled)

    assert reasons(found) == {("vm", 0): {"ineffective"}}


def test_a_failed_change_is_a_reason_of_its_own():
    """It says that a limit in force is not the one decided on."""
    assert unenforced(reports.booked(failure="Permission denied")) == {"failed": 1}


def test_invalid_bookings_and_unreadable_instances_have_different_reasons():
    """The first is for whoever made the flavor, the second for whoever runs the host."""

    def troubled(seen):
        a, b, c = seen.domains
        a = structs.replace(a, domain=replace(a.domain, specs={"amp:pref_core": "fast"}))
        b = structs.replace(b, failure="vCPU 1 has no CPU cgroup of its own")
        return replace(seen, domains=(a, b, c))

    found = cycle(guest("a"), guest("b"), guest("c"), altered=troubled)

    rows = {row.name: row for row in metrics.ALL}
    family = rows["amp_instance_problem_info"].family(
        (), [((), snapshot(found, None, VcpuTotals()))]
    )
    reason_of = {s.labels["resource"]: s.labels["reason"] for s in family.samples}
    assert reason_of == {"a": "booking", "b": "host"}


def test_vcpus_that_may_be_plugged_later_book_nothing_yet():
    """Nova's live resize defines ceilings; one that was plugged since counts, one unread too."""
    host = hosts.FakeHost(hosts.topology({"only": (16, 1.0)}))
    running = host.add("vm", {"pref_core": "1"}, vcpus=3)
    del running.vcpus[1]
    about = replace(running.domain, vcpus=32, unplugged=frozenset(range(2, 32)))
    host.domains["vm"] = replace(running, domain=about)
    found, info = Loop(host, host).cycle(), HostInfo("host")

    (reported,) = host_report(found, info, Origin("host", "boot", 1, 1.0)).instances
    assert [v.index for v in reported.vcpus] == [0, 1, 2]
    assert unclaimed_refcores(found) == {"only": 3.0}
