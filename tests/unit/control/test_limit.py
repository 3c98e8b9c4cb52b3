# SPDX-License-Identifier: Apache-2.0
"""How a share becomes a limit, and what is carried from one cycle to the next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from amp_nova.control.context import Context, Home, Packed, Share, Terms
from amp_nova.control.entitlement import Entitlement
from amp_nova.control.limit import (
    OVERDRAFT_S,
    Carried,
    Limits,
    adopt,
    carry,
    decide,
    steady,
)
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.allocation import Allocation
from amp_nova.model.bandwidth import Bandwidth, bandwidth
from amp_nova.model.delivered import Delivery
from amp_nova.model.topology import CoreType, Topology
from tests.support.hosts import limit, topology

KEY = ("vm", 0)
SLOW = frozenset({0, 1})
TYPES = (CoreType("slow", 1.0, nominal_ips=1e9), CoreType("fast", 2.0, nominal_ips=2e9))
HOST = Topology(TYPES, topology().pcpus, "slow", "test")
PERIOD_US = 100_000
NOISE = 1e-6


def booked(share, refcores=0.25, **given):
    """What a vCPU that books reference cores and is kept on a slow core is entitled to."""
    booking = VcpuBooking(0, refcores)
    home = Home("slow", 0, given.get("needs", share.cores), given.get("max_cores"))
    return Entitlement(KEY, booking, SLOW, SLOW, governed_by="booking", home=home, share=share)


def decided(entitlement, now, before=None, delivered=None, **terms):
    """The entitlement with its limit, and what is carried over.

    ``now``: the limit in force, or all of the allocation.
    """
    now = now if isinstance(now, Allocation) else Allocation(SLOW, now)
    terms = Terms(**terms)
    fixed = steady({KEY: entitlement}, HOST, terms, speeds_vary=True)
    deliveries = {KEY: delivered or Delivery()}
    before = before or Limits(adopting=frozenset())
    context = Context(HOST, terms, Packed({}, None))
    limits = carry(before, fixed, deliveries)
    made = decide(fixed, limits.carried, {KEY: now}, context)
    made, limits = adopt(made, {KEY: now}, limits)
    return made[KEY], limits


def carrying(**state):
    """Limits that are long in force, and what one vCPU carries over."""
    return Limits({KEY: Carried(**state)}, {KEY: Delivery()}, adopting=frozenset())


BANK = Share(0.25, PERIOD_US, "speed", 2.0)
SPEED = Share(0.25, PERIOD_US, "speed")


@pytest.mark.parametrize(("now", "cores"), [(0.9, 0.45), (0.2, 0.2), (None, 0.45)])
def test_the_limit_of_a_vcpu_that_moves_itself_only_falls(now, cores):
    """It may go back to slower cores, where its booking means more."""
    share = Share(0.45, PERIOD_US, "falls")
    entitlement = structs.replace(booked(share), governed_by="excluded", pcpus=None)

    made, _ = decided(entitlement, now if now is None else limit(now))

    assert made.limit.cores == pytest.approx(cores)


@pytest.mark.parametrize(
    ("banked_s", "cores"),
    [
        (0.0, 0.25),
        (1.0, 0.5),  # spent within one cycle of a second
        (9.0, 0.9),  # what the neighbours leave
        (-0.4, 0.225),
        (0.008, 0.25),  # too little to be written
    ],
)
def test_a_bank_changes_the_limit(banked_s, cores):
    """Until the next cycle."""
    entitlement = booked(BANK, max_cores=0.9)

    made, _ = decided(entitlement, limit(0.25), carrying(balance_s=banked_s, pcpu=0))

    assert made.limit.cores == pytest.approx(cores)
    assert made.banked_s == max(0.0, banked_s)


def test_a_pcpu_whose_speed_is_not_known_yet_is_as_slow_as_admission_assumes():
    """At first, and after a move; a vCPU that did not run keeps what is known."""
    at_worst = booked(SPEED, needs=0.4)

    made, limits = decided(at_worst, limit(0.25))
    assert made.limit.cores == pytest.approx(0.4)
    made, limits = decided(at_worst, made.limit, limits, Delivery(1.0, 1.0, 0.25, 0.25, 0.25))
    assert made.limit.cores == pytest.approx(0.25)
    made, limits = decided(at_worst, made.limit, limits, Delivery(2.0, 1.0, 0.25, 0.25, 0.25))
    assert made.limit.cores == pytest.approx(0.25)
    moved = structs.replace(at_worst, home=Home("slow", 1, 0.4))
    made, limits = decided(moved, made.limit, limits, Delivery(3.0, 2.0, 0.5, 0.5, 0.5))
    assert made.limit.cores == pytest.approx(0.4)


def test_what_is_not_wanted_is_banked_and_an_excess_is_withdrawn():
    """Up to ``amp:burst_s`` seconds of the booking."""
    _, limits = decided(booked(BANK), limit(0.25), carrying(pcpu=0), Delivery(wall_s=1.0))
    assert limits.carried[KEY].balance_s == 1.0

    ran = Delivery(2.0, demand_s=1.0, owed=0.25, worth=0.4, got=0.4)
    _, limits = decided(booked(BANK), limit(0.25), limits, ran)
    assert limits.carried[KEY].balance_s == pytest.approx(0.4)

    _, limits = decided(booked(BANK), limit(0.25), limits, structs.replace(ran, wall_s=99.0))
    assert limits.carried[KEY].balance_s == 2.0


def test_a_vcpu_that_cannot_be_read_keeps_what_it_carries():
    """For as long as its instance is there."""
    other = ("vm", 1)
    carried = dict.fromkeys([other, ("gone", 0)], Carried(0.1))
    before = Limits(carried, dict.fromkeys(carried, Delivery()), adopting=frozenset())

    _, limits = decided(booked(BANK), limit(0.25), before)

    assert limits.carried.keys() == {KEY, other}


@given(
    st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30),
    st.floats(0.01, 4),
    st.sampled_from([BANK, SPEED]),
)
def test_what_is_carried_over_is_bounded(intervals, refcores, share):
    """Whatever happens, no more than a second of the booking is made up for or withdrawn."""
    entitlement, state = booked(share, refcores), Carried()
    for worth, kept, demand_s in intervals:
        got = worth * kept
        owed = max(refcores * demand_s, min(got, refcores))
        interval = Delivery(1.0, demand_s, owed, worth, got, max(0.0, owed - got))
        state = state.after(interval, entitlement)

        most_s = (share.burst_s if share is BANK else OVERDRAFT_S) + NOISE
        assert -OVERDRAFT_S - NOISE <= state.balance_s <= most_s
        assert -NOISE <= state.worth_ratio <= 1.0 + NOISE


@given(st.lists(st.floats(0, 3), min_size=1, max_size=10))
def test_what_neighbours_took_is_not_made_up_for(shorts):
    """What did not use up its limit leaves nothing to repay, however little a vCPU got."""
    state = Carried()
    for short in shorts:
        state = state.after(Delivery(1.0, 1.0, 1.0 + short, 1.0, 1.0), booked(SPEED, 1.0))

    assert state == Carried()


SHARES = st.integers(1, 100).map(lambda percent: Bandwidth(percent * 1000, 100_000))


@given(SHARES, st.none() | SHARES, st.none() | st.floats(0.01, 1.0))
def test_adopted_limits_arrive_in_steps_of_a_tenth_except_towards_the_booking(now, wanted, booked):
    """No step is greater than a tenth, or passes the booking; the wanted limit is reached."""
    share = Share(None if wanted is None else wanted.cores, PERIOD_US)
    wanted = None if wanted is None else bandwidth(wanted.cores, PERIOD_US)
    home = Home("slow", 0, booked)
    entitlement = Entitlement(KEY, VcpuBooking(0), SLOW, SLOW, home=home, share=share)
    limits, in_force = Limits(), now
    for _ in range(200):
        if in_force is None or limits.adopting == frozenset():
            break
        made, limits = decided(entitlement, in_force, limits)
        after = made.limit
        before, then = in_force.cores, 1.0 if after is None else after.cores
        if abs(then - before) > 0.1 * before + 2e-5:
            assert booked is not None
            assert min(before, booked) - 2e-5 <= then <= max(before, booked) + 2e-5
        in_force = after
    assert in_force == wanted
