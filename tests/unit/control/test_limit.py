"""How a share becomes a limit, and what is carried from one cycle to the next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.control.context import Context, Home, Packed, Share, Terms
from amp_nova.control.entitlement import Entitlement
from amp_nova.control.ips_controller import OVERDRAFT_S
from amp_nova.control.limit import Carried, Limits, adopt, carry, decide, steady
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.allocation import Allocation
from amp_nova.model.bandwidth import Bandwidth, bandwidth
from amp_nova.model.delivered import Delivery
from amp_nova.model.topology import CoreType, Topology
from tests.support.hosts import limit, topology

KEY = ("vm", 0)
SLOW, FAST = frozenset({0, 1}), frozenset({2})
TYPES = (CoreType("slow", 1.0, nominal_ips=1e9), CoreType("fast", 2.0, nominal_ips=2e9))
HOST = Topology(TYPES, topology().pcpus, "slow", "test")
PERIOD_US = 100_000
NOISE = 1e-6


def booked(share, refcores=0.25, **given):
    """What a vCPU that books reference cores and is kept on a slow core is entitled to."""
    booking = VcpuBooking(0, refcores)
    home = Home("slow", 0, share.cores, given.pop("max_cores", None))
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
    made = decide(fixed, limits.carried, limits.counted, {KEY: now}, context)
    made, limits = adopt(made, {KEY: now}, limits)
    return made[KEY], limits


def carrying(**state):
    """Limits that are long in force, and what one vCPU carries over."""
    return Limits({KEY: Carried(**state)}, {KEY: Delivery()}, adopting=frozenset())


BANK = Share(0.25, PERIOD_US, "bank", 2.0)
SPEED = Share(0.25, PERIOD_US, "speed")


@pytest.mark.parametrize(
    ("share", "balance_ref_s", "cores"),
    [
        (BANK, 0.0, 0.25),
        (BANK, 0.25, 0.5),  # spent within one cycle of a second
        (BANK, 9.0, 0.9),  # what the neighbours leave
        (BANK, -0.1, 0.15),
        (BANK, -9.0, 0.125),  # not less than half of the booking
        (BANK, 0.002, 0.25),  # too little to be written
        (SPEED, 0.1, 0.275),  # not more than 1.1 of the worst case
        (SPEED, -0.1, 0.225),  # within four seconds
        (SPEED, -9.0, 0.125),
    ],
)
def test_a_balance_changes_the_limit(share, balance_ref_s, cores):
    """Until the next cycle; by one rule, whatever the balance comes from."""
    entitlement = booked(share, max_cores=0.9)

    made, _ = decided(entitlement, limit(0.25), carrying(balance_ref_s=balance_ref_s))

    assert made.limit.cores == pytest.approx(cores)
    banked = max(0.0, balance_ref_s) if share is BANK else 0.0
    assert made.banked_ref_s == banked


def test_a_slow_pcpu_raises_the_limit():
    """At 0.95 of its speed; the reason says so."""
    made, _ = decided(booked(SPEED), limit(0.25), carrying(kept_ratio=0.95))

    assert made.limit.cores == pytest.approx(0.25 / 0.95, rel=1e-3)
    assert made.reason.endswith("at 0.95 of its speed lately")


def test_what_is_not_wanted_is_banked_and_an_excess_is_withdrawn():
    """Up to ``amp:burst_s`` seconds of the booking."""
    _, limits = decided(booked(BANK), limit(0.25), carrying(), Delivery(wall_s=1.0))
    assert limits.carried[KEY].balance_ref_s == 0.25

    ran = Delivery(2.0, demand_s=1.0, owed_ref_s=0.25, worth_ref_s=0.4)
    _, limits = decided(booked(BANK), limit(0.25), limits, ran)
    assert limits.carried[KEY].balance_ref_s == pytest.approx(0.1)

    _, limits = decided(booked(BANK), limit(0.25), limits, Delivery(wall_s=99.0))
    assert limits.carried[KEY].balance_ref_s == 0.5


def test_a_vcpu_that_cannot_be_read_keeps_what_it_carries():
    """For as long as its instance is there."""
    other = ("vm", 1)
    carried = dict.fromkeys([other, ("gone", 0)], Carried(0.1))
    before = Limits(carried, dict.fromkeys(carried, Delivery()), adopting=frozenset())

    _, limits = decided(booked(BANK), limit(0.25), before)

    assert limits.carried.keys() == {KEY, other}


@given(
    st.lists(
        st.tuples(st.floats(0, 2), st.floats(0, 1), st.floats(-2, 2)), min_size=1, max_size=30
    ),
    st.floats(0.01, 4),
)
def test_what_is_carried_over_is_bounded(intervals, refcores):
    """Whatever happens, no more than a second of the booking is made up for, either way."""
    entitlement, state = booked(SPEED, refcores), Carried()
    for got, lost, short in intervals:
        interval = Delivery(1.0, 1.0, got * (1.0 - lost) + short, got, lost * got)
        state = state.after(interval, entitlement)

        assert abs(state.balance_ref_s) <= refcores * OVERDRAFT_S + NOISE
        assert -NOISE <= state.kept_ratio <= 1.0 + NOISE


@given(st.lists(st.floats(0, 3), min_size=1, max_size=10))
def test_what_neighbours_took_is_not_made_up_for(shorts):
    """A pCPU at full speed leaves nothing to repay, however little a vCPU got of it."""
    state = Carried()
    for short in shorts:
        state = state.after(Delivery(1.0, 1.0, 1.0 + short, 1.0), booked(SPEED, 1.0))

    assert state == Carried()


@pytest.mark.parametrize(
    ("now", "counted", "cores"),
    [
        (Allocation(SLOW, limit(0.1)), limit(0.3), 0.3),
        (Allocation(SLOW, limit(0.1)), None, 0.1),
        (Allocation(FAST, limit(0.1)), limit(0.3), 0.6),
        (Allocation(SLOW, None), None, 0.4),
    ],
    ids=["stays", "taken over", "comes from a fast core", "unlimited"],
)
def test_the_controllers_limit_stays(now, counted, cores):
    """On another core type it is scaled by nominal Ips."""
    entitlement = Entitlement(
        KEY,
        VcpuBooking(0, ips=0.4e9),
        SLOW | FAST,
        SLOW,
        governed_by="ips",
        home=Home("slow", 0, 0.4),
        share=Share(0.4, follows="counts"),
    )
    before = Limits(counted={KEY: counted} if counted else {}, adopting=frozenset())

    made, limits = decided(entitlement, now, before)

    assert made.limit.cores == pytest.approx(cores)
    assert limits.counted is before.counted


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
