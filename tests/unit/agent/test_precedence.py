"""Bookings come first: who yields to whom."""

from dataclasses import replace

from amp_nova.agent.loop import Loop, Settings
from amp_nova.control.entitlement import Terms
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


def yields(host):
    return {name: domain.yields for name, domain in host.domains.items()}


def test_best_effort_yields_where_there_is_a_booking():
    """An instance without a booking runs in what bookings leave; a booked one does not yield."""
    host = host_with(booked={"pref_core": "0.5"}, free=None)

    Loop(host, host).cycle()

    assert yields(host) == {"booked": False, "free": True}


def test_without_bookings_nobody_yields():
    """Among best-effort instances alone nothing is touched, and nothing is written."""
    host = host_with(one=None, two=None)

    report = Loop(host, host).cycle()

    assert yields(host) == {"one": False, "two": False}
    assert report.totals.writes == 0


def test_when_the_last_booking_goes_nobody_yields_any_more():
    """What was set for bookings ends with them."""
    host = host_with(booked={"pref_core": "0.5"}, free=None)
    loop = Loop(host, host)
    loop.cycle()
    del host.domains["booked"]
    host.wait()

    loop.cycle()

    assert yields(host) == {"free": False}


def test_an_over_booked_instance_yields_to_those_that_fit():
    """The one that found no room takes nothing from the one that did."""
    host = host_with(first={"pref_core": "1", "core_type": "slow"})
    loop = Loop(host, host)
    loop.cycle()
    host.add("second", {"pref_core": "1", "core_type": "slow"})
    host.add("third", {"pref_core": "1", "core_type": "slow"})
    host.wait()
    loop.cycle()

    rooms = len(host.topology.pcpus_of("slow"))
    assert sum(not y for y in yields(host).values()) == rooms
    assert yields(host)["first"] is False


def test_an_instance_with_a_booked_vcpu_does_not_yield():
    """One booked vCPU is enough: the instance's booking comes first."""
    host = FakeHost()
    host.add("mixed", {"pref_core.0": "0.5"}, vcpus=2)

    Loop(host, host).cycle()

    assert yields(host) == {"mixed": False}


def test_held_instances_and_those_with_shares_of_their_own_are_left_alone():
    """Where precedence is not ours to say, nothing is said."""
    host = host_with(booked={"pref_core": "0.5"}, paused=None, weighted=None)
    host.held = {"paused": "paused by an operator"}
    host.domains["weighted"].yields = None

    Loop(host, host).cycle()

    assert yields(host) == {"booked": False, "paused": False, "weighted": None}


def test_it_can_be_switched_off():
    """[agent] best_effort_yields = false leaves precedence to the kernel."""
    host = host_with(booked={"pref_core": "0.5"}, free=None)

    Loop(host, host, Settings(terms=replace(Terms(), best_effort_yields=False))).cycle()

    assert yields(host) == {"booked": False, "free": False}


def test_a_dry_run_says_who_would_yield_and_changes_nothing():
    """--dry-run decides and leaves everything as it is."""
    host = host_with(booked={"pref_core": "0.5"}, free=None)
    loop = Loop(host, host, Settings(dry_run=True))

    loop.cycle()

    assert loop.precedence == {"free": True}
    assert yields(host) == {"booked": False, "free": False}


def test_a_policy_moves_the_rest_of_a_booked_instance_and_nobody_quarrels():
    """Its vCPUs without a booking take turns like others', within what nobody booked there."""
    guests = [guest("mixed", 3, pref_core__0="0.5", pref_core__2="1.25"), guest("other")]
    host = SimHost(topology(), guests)
    loop = Loop(host, host, policy=load_policy("amp-fair"), stopwatch=lambda: 0.0)
    kept = set()
    for second in range(60):
        host.advance(float(second))
        (rest,) = (v for v in host.observe().domains[0].vcpus if v.index == 1)
        kept.add(rest.pcpus)
        totals = loop.cycle().totals

    assert {frozenset({0}), frozenset({1})} <= kept
    assert sum(totals.drift.values()) == 0
