# SPDX-License-Identifier: Apache-2.0
"""What is in force after changes, and what is safe without an agent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.agent.loop import Loop
from amp_nova.control.changes import AS_FOUND, LEFT_ALONE, changes, safe_state
from amp_nova.control.context import Home, Share
from amp_nova.control.entitlement import Entitlement
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.allocation import Failure, Outcome, in_force
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests.support.hosts import FakeHost, allocations, limit

KEY = ("vm", 0)
SLOW, FAST = frozenset({0, 1}), frozenset({2})
COUNTED = Topology(
    (CoreType("slow", 1.0, nominal_ips=1e9), CoreType("fast", 2.0, nominal_ips=4e9)),
    tuple(PCpu(i, "fast" if i in FAST else "slow") for i in (0, 1, 2)),
    "slow",
    "test",
)


def test_what_is_in_force_after_changes():
    """What failed is as it was before."""
    host = FakeHost()
    host.add("vm", vcpus=2)
    before, moved = allocations(host.observe()), {"share": Share(0.5), "limit": limit(0.5)}
    wanted = {
        ("vm", i): Entitlement(("vm", i), VcpuBooking(i), frozenset(), FAST, **moved)
        for i in range(2)
    }
    made = changes(before, {"vm": None}, wanted)

    now = in_force(before, made, Outcome({("vm", 1): Failure("refused", "no")}))

    assert (now["vm", 0].pcpus, now["vm", 0].bandwidth) == (FAST, limit(0.5))
    assert now["vm", 1] == before["vm", 1]


def recorded(specs, **more):
    """What the loop hands to the writer for an instance of one vCPU."""
    host = FakeHost()
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
        VcpuBooking(0, ips=5e8),
        SLOW | FAST,
        SLOW,
        governed_by="ips",
        home=Home("slow", 0, 0.5),
        share=Share(0.5, follows="counts"),
    )

    limits = safe_state(entitlement, COUNTED).limits

    assert [(pcpus, limit.cores) for pcpus, limit in limits] == [
        (SLOW, pytest.approx(0.5)),
        (FAST, pytest.approx(0.125)),
    ]


@pytest.mark.parametrize(("governed_by", "state"), [("policy", AS_FOUND), ("excluded", LEFT_ALONE)])
def test_best_effort_gets_what_was_found_and_what_is_paused_is_left_alone(governed_by, state):
    """Not the pCPUs that a policy chose at some moment."""
    kept = FAST if governed_by == "policy" else None
    entitlement = Entitlement(KEY, VcpuBooking(0), SLOW | FAST, kept, governed_by=governed_by)

    assert safe_state(entitlement, COUNTED) == state


def test_the_guard_limits_a_booking_that_somebody_else_moves():
    """Wherever it is by then; on both core types, no more than its booking on the faster one."""
    entitlement = Entitlement(
        KEY,
        VcpuBooking(0, 0.5),
        SLOW | FAST,
        governed_by="excluded",
        home=Home("fast", 0, 0.5),
        share=Share(0.25, follows="falls"),
    )

    state = safe_state(entitlement, COUNTED)

    assert state.pcpus is None
    assert [(there, limit.cores) for there, limit in state.limits] == [
        (SLOW, pytest.approx(0.5)),
        (FAST, pytest.approx(0.25)),
        (SLOW | FAST, pytest.approx(0.25)),
    ]


def test_best_effort_stays_on_the_core_type_that_its_flavor_asks_for():
    """Without a limit; one that only has a weight, as it has here, needs nothing."""
    safe = recorded({"core_type": "slow"})

    assert (safe.pcpus, safe.limits) == (SLOW, ())
    assert recorded({}) is None
