"""The safe state of what is decided, whatever that is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.agent.loop import Loop
from amp_nova.control import adoption
from amp_nova.control.entitlement import Entitlement, Quota
from amp_nova.control.homes import Home
from amp_nova.control.safe_state import AS_FOUND, LEFT_ALONE, safe_state
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.allocation import Allocation
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests import hosts

SLOW, FAST = frozenset({0, 1}), frozenset({2})
KEY = ("vm", 0)
COUNTED = Topology(
    (CoreType("slow", 1.0, nominal_ips=1e9), CoreType("fast", 2.0, nominal_ips=4e9)),
    tuple(PCpu(i, "fast" if i in FAST else "slow") for i in (0, 1, 2)),
    "slow",
    "test",
)


def recorded(specs, **more):
    """What the loop hands to the writer for an instance of one vCPU."""
    host = hosts.FakeHost()
    host.add("vm", specs, **more)
    host.add("other", {"pref_core": "0.1"})
    cycle = Loop(host, host).cycle()
    return cycle.changes.safe.get(KEY)


@given(st.floats(0.01, 2.0), st.sampled_from(["hard", "soft"]))
def test_a_booking_in_reference_cores_has_the_right_limit_on_every_core_type(refcores, limit):
    """CPU time times coefficient is what was booked, as exactly as the kernel's units allow."""
    safe = recorded({"pref_core": f"{refcores:.3f}", "limit": limit})

    booked = float(f"{refcores:.3f}")
    assert [pcpus for pcpus, _ in safe.limits] == [SLOW, FAST]
    for (_, bandwidth), coefficient in zip(safe.limits, (1.0, 2.0), strict=True):
        if bandwidth is None:
            assert booked / coefficient >= 1.0 - 1e-9
        else:
            assert bandwidth.cores * coefficient == pytest.approx(booked, rel=1e-3)
    assert safe.pcpus in (SLOW, FAST)


def test_a_booking_in_ips_falls_back_to_the_nominal_limit():
    """On each core type, whatever the controller's limit is at this moment."""
    entitlement = Entitlement(
        KEY,
        VcpuBooking(0, "ips", ips=5e8),
        SLOW | FAST,
        SLOW,
        Quota(Bandwidth(13579, 20000)),
        governed_by="ips",
        home=Home("slow", 0, 0.5),
    )

    limits = safe_state(entitlement, COUNTED).limits

    assert [(pcpus, limit.cores) for pcpus, limit in limits] == [
        (SLOW, pytest.approx(0.5)),
        (FAST, pytest.approx(0.125)),
    ]


def test_best_effort_that_a_policy_placed_gets_what_was_found():
    """Not the pCPUs that a policy chose at some moment."""
    entitlement = Entitlement(KEY, VcpuBooking(0), SLOW | FAST, FAST, governed_by="policy")

    assert safe_state(entitlement, COUNTED) == AS_FOUND


def test_best_effort_that_only_has_a_weight_needs_nothing():
    """The weight, which it has because of the other instance's booking, is right without agent."""
    assert recorded({}) is None


def test_the_core_type_that_a_flavor_asks_for_stays():
    """Without a limit."""
    safe = recorded({"core_type": "slow"})

    assert (safe.pcpus, safe.limits) == (SLOW, ())


def test_what_is_paused_is_left_alone():
    """It is not amp-nova's to change, dead or alive."""
    entitlement = Entitlement(KEY, VcpuBooking(0), SLOW | FAST, governed_by="excluded")

    assert safe_state(entitlement, COUNTED) == LEFT_ALONE


SHARES = st.integers(1, 100).map(lambda percent: Bandwidth(percent * 1000, 100_000))


@given(SHARES, st.none() | SHARES, st.none() | st.floats(0.01, 1.0))
def test_adopted_limits_arrive_in_steps_of_a_tenth_except_towards_the_booking(now, wanted, booked):
    """No step is greater than a tenth, or passes the booking; the wanted limit is reached."""
    entitlement = Entitlement(
        KEY, VcpuBooking(0), SLOW, SLOW, Quota(wanted), home=Home("slow", 0, booked)
    )
    easing, limit = {KEY}, now
    for _ in range(200):
        if not easing:
            break
        eased, easing = adoption.eased({KEY: entitlement}, {KEY: Allocation(SLOW, limit)}, easing)
        after = eased[KEY].quota.bandwidth
        before, then = limit.cores, 1.0 if after is None else after.cores
        if abs(then - before) > 0.1 * before + 2e-5:
            assert booked is not None
            assert min(before, booked) - 2e-5 <= then <= max(before, booked) + 2e-5
        limit = after
        if limit is None:
            easing = ()
    assert not easing
    assert limit == wanted
