"""The scheduler's quick answer: does this booking fit that host, by its agent's report."""

from dataclasses import replace

import pytest

from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.scheduling.host_fit import fit, quick, room
from amp_nova.wire.host_report import InstanceShare, VcpuShare
from tests import hosts
from tests.snapshots import ask, instance, snapshot

CALIBRATED = Topology(
    (CoreType("slow", 1.0, nominal_ips=2e9), CoreType("fast", 2.0, nominal_ips=4e9)),
    (PCpu(0, "slow"), PCpu(1, "fast")),
    "slow",
    "test",
)


def answer(asked, *instances, without=None, pending=None, **said):
    """The core types an instance gets on the usual host, or why it is refused."""
    found = fit(room(snapshot(*instances, **said), without, pending or {}), asked)
    return found.refused or found.core_types


def test_slow_cores_are_taken_first():
    """What fits a slow core leaves the fast ones alone; what does not, takes a fast one."""
    assert answer(ask(2, pref_core=1)) == ("slow", "slow")
    assert answer(ask(3, pref_core=1)) == ("slow", "slow", "fast")
    assert answer(ask(2, pref_core__0=0.5, pref_core__1=1.5)) == ("fast", "slow")


def test_what_is_there_takes_its_room():
    """A host takes as many as its agent can pack, and says what is missing."""
    held = instance("a", (1.0, 0), (1.0, 1), (1.5, 2))

    assert answer(ask(pref_core=0.5), held) == ("fast",)
    assert "0.6 reference cores are asked and 0.500 are free" in answer(ask(pref_core=0.6), held)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (ask(pref_core=2.5), "more than any core gives"),
        (ask(pref_core=1.5, core_type="slow"), "more than any core gives"),
        (ask(pref_core=1, core_type="turbo"), "no core type 'turbo'"),
        (ask(core_type="turbo"), "no core type 'turbo'"),
        (ask(ips="1G"), "not calibrated"),
    ],
)
def test_what_the_host_can_never_hold_is_refused_with_the_reason(asked, reason):
    """The log line tells an operator what to mend."""
    assert reason in answer(asked)


def test_a_best_effort_instance_with_a_core_type_needs_that_type_only():
    """It books nothing, so it needs no room."""
    assert answer(ask(core_type="fast"), instance("a", (2.0, 2))) == ()


def test_an_uncalibrated_host_is_refused():
    """Without a coefficient nobody knows what a reference core is there."""
    unknown = hosts.topology({"slow": (2, None)})

    assert "coefficient" in answer(ask(pref_core=0.5), topology=unknown)


def test_instructions_are_converted_by_the_calibration():
    """On cores of 2 and 4 GIps, 3 GIps fit the fast one only, and 5 none."""
    assert answer(ask(ips="3G"), topology=CALIBRATED) == ("fast",)
    assert answer(ask(ips="1G"), topology=CALIBRATED) == ("slow",)
    assert "more than any core gives" in answer(ask(ips="5G"), topology=CALIBRATED)


def test_instructions_take_what_the_core_retires_whatever_its_coefficient():
    """A fast core of coefficient 3 that retires 2.5 times as much: 3.7 GIps take 0.74 of it."""
    fast = CoreType("fast", 3.0, nominal_ips=5e9)
    uneven = replace(CALIBRATED, core_types=(CALIBRATED.core_types[0], fast))
    held = InstanceShare("a", (VcpuShare(0, ips=3.7e9, allowed=frozenset({0, 1}), pcpu=1),))

    assert answer(ask(pref_core=0.75), held, topology=uneven) == ("slow",)
    assert answer(ask(pref_core=0.75, core_type="fast"), held, topology=uneven) == ("fast",)
    assert "free" in answer(ask(pref_core=0.85, core_type="fast"), held, topology=uneven)
    assert answer(ask(ips="5G"), topology=uneven) == ("fast",)
    assert "5.5e+09 instructions per second is more than" in answer(
        ask(ips="5.5G"), topology=uneven
    )


def test_the_reserve_stays_free():
    """A tenth of every pCPU is kept: a whole slow core is not to be had."""
    assert answer(ask(pref_core=1), reserve_ratio=0.1) == ("fast",)
    assert "in one piece" not in answer(ask(3, pref_core=1), reserve_ratio=0.1)
    assert answer(ask(3, pref_core=1), reserve_ratio=0.1).endswith(
        "not free on any pCPU it may use"
    )


def test_pcpus_that_new_instances_may_not_use_are_no_room():
    """What cpu_shared_set leaves out is not Nova's to give."""
    assert "free" in answer(ask(2, pref_core=1), bookable=frozenset({0}))


def test_room_in_pieces_is_made_one_as_the_agent_does():
    """Half is free on both slow cores: the agent moves one vCPU to make a whole."""
    held = (instance("a", (0.5, 0)), instance("b", (0.5, 1)), instance("c", (2.0, 2)))
    found = room(snapshot(*held))

    assert quick(found, ask(pref_core=1)) is None
    assert fit(found, ask(pref_core=1)).core_types == ("slow",)


def test_what_was_sent_there_counts_before_it_is_reported():
    """The second of two equal requests finds the room taken."""
    sent = {"b": ask(pref_core=2)}

    assert answer(ask(pref_core=2)) == ("fast",)
    assert answer(ask(pref_core=2), pending=sent) == "2 reference cores are not free in one piece"
    assert answer(ask(pref_core=2), pending=sent, without="b") == ("fast",)


def test_its_own_share_does_not_stand_in_its_way():
    """A resize on the same host: what it has now is what it gives up."""
    held = instance("a", (1.5, 2))

    assert "free" in answer(ask(pref_core=2), held)
    assert answer(ask(pref_core=2), held, without="a") == ("fast",)


def test_an_over_booked_host_takes_nobody():
    """Somebody without a place comes before newcomers."""
    held = (instance("a", (2.0, 2)), instance("b", (2.0, None)))

    assert answer(ask(pref_core=0.5), *held) == "0.5 reference cores are asked and 0.000 are free"
    over = (instance("a", (1.5, 2)), instance("b", (1.6, None)))
    assert answer(ask(pref_core=0.1), *over) == "it is over-booked"


def test_offline_pcpus_hold_nothing():
    """Whoever was packed there needs another place first."""
    held = instance("a", (1.0, 1))
    some = hosts.topology(offline=(1,))
    rest = replace(snapshot(held, topology=some), topology=some)

    assert fit(room(rest), ask(pref_core=1)).core_types == ("fast",)
