"""Bookings come first: best effort runs in the idle class beside them."""

from dataclasses import replace

from amp_nova.agent.loop import Loop, Settings
from amp_nova.control.context import Terms
from amp_nova.plugins import load_policy
from amp_nova.sim.host import SimHost
from tests.hosts import FakeHost
from tests.unit.sim.builders import guest, topology


def host_with(**specs):
    """A host with one domain per keyword argument, each with these extra specs."""
    host = FakeHost()
    for name, spec in specs.items():
        host.add(name, spec)
    return host


def idle(host):
    return {name: domain.idle for name, domain in host.domains.items()}


def test_idle_class_where_there_is_a_booking():
    """An instance without a booking runs in what bookings leave; a booked one does not."""
    host = host_with(booked={"pref_core": "0.5"}, free=None)

    Loop(host, host).cycle()

    assert idle(host) == {"booked": False, "free": True}


def test_without_bookings_nobody_is_idle():
    """Among best-effort instances alone nothing is touched, and nothing is written."""
    host = host_with(one=None, two=None)

    report = Loop(host, host).cycle()

    assert idle(host) == {"one": False, "two": False}
    assert report.totals.writes == 0


def test_when_the_last_booking_goes_the_idle_class_is_left():
    """What was set for bookings ends with them."""
    host = host_with(booked={"pref_core": "0.5"}, free=None)
    loop = Loop(host, host)
    loop.cycle()
    del host.domains["booked"]
    host.wait()

    loop.cycle()

    assert idle(host) == {"free": False}


def test_an_over_booked_instance_runs_in_the_idle_class():
    """The one that found no capacity takes nothing from the one that did."""
    host = host_with(first={"pref_core": "1", "core_type": "slow"})
    loop = Loop(host, host)
    loop.cycle()
    host.add("second", {"pref_core": "1", "core_type": "slow"})
    host.add("third", {"pref_core": "1", "core_type": "slow"})
    host.wait()
    loop.cycle()

    fits = len(host.topology.pcpus_of("slow"))
    assert sum(not y for y in idle(host).values()) == fits
    assert idle(host)["first"] is False


def test_an_instance_with_a_booked_vcpu_is_not_idle():
    """One booked vCPU is enough: the instance's booking comes first."""
    host = FakeHost()
    host.add("mixed", {"pref_core.0": "0.5"}, vcpus=2)

    Loop(host, host).cycle()

    assert idle(host) == {"mixed": False}


def test_paused_instances_and_those_with_shares_of_their_own_are_left_alone():
    """Where the idle class is not ours to set, it is not set."""
    host = host_with(booked={"pref_core": "0.5"}, paused=None, weighted=None)
    host.paused = {"paused": "paused by an operator"}
    host.domains["weighted"].idle = None

    Loop(host, host).cycle()

    assert idle(host) == {"booked": False, "paused": False, "weighted": None}


def test_it_can_be_switched_off():
    """[agent] idle_class = false leaves all instances in the normal class."""
    host = host_with(booked={"pref_core": "0.5"}, free=None)

    Loop(host, host, Settings(terms=replace(Terms(), idle_class=False))).cycle()

    assert idle(host) == {"booked": False, "free": False}


def test_a_dry_run_tells_the_idle_class_and_changes_nothing():
    """--dry-run decides and leaves everything as it is."""
    host = host_with(booked={"pref_core": "0.5"}, free=None)
    loop = Loop(host, host, Settings(dry_run=True))

    assert loop.cycle().changes.idle == {"free": True}
    assert idle(host) == {"booked": False, "free": False}


def test_a_policy_moves_the_unbooked_vcpus_of_a_booked_instance():
    """They take turns like others', within what nobody booked, and that is no foreign change."""
    guests = [guest("mixed", 3, pref_core__0="0.5", pref_core__2="1.25"), guest("other")]
    host = SimHost(topology(), guests)
    loop = Loop(host, host, policy=load_policy("amp-fair"), stopwatch=lambda: 0.0)
    kept = set()
    for second in range(60):
        host.advance(float(second))
        (unbooked,) = (v for v in host.observe().domains[0].vcpus if v.index == 1)
        kept.add(unbooked.pcpus)
        totals = loop.cycle().totals

    assert {frozenset({0}), frozenset({1})} <= kept
    assert sum(totals.drift.values()) == 0
