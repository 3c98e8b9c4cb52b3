# SPDX-License-Identifier: Apache-2.0
"""A decision that was overtaken by events is made anew before its interval is over."""

import pytest

from amp_nova.policies.api import Decision
from tests.support import hosts
from tests.support.policy_runs import Answer, Runner

FAST, SLOW = frozenset({2}), frozenset({0})
A, B, C = ("a", 0), ("b", 0), ("c", 0)
A_FAST, A_SLOW = {A: FAST, B: SLOW}, {A: SLOW, B: FAST}
BOTH_SLOW = {A: SLOW, B: frozenset({1})}


def prompt(places, early=True):
    """A policy with one answer that wants to be asked early."""
    return Answer(Decision(places, early=early))


@pytest.fixture
def host():
    """Three best-effort vCPUs, c asleep, on two slow pCPUs (0, 1) and a fast one (2)."""
    host = hosts.FakeHost()
    for name in "abc":
        host.add(name)
    host.vcpu("c").wants = 0.0
    return host


def asked_s(policy, host, seconds, wants=None):
    """At which seconds the policy was asked; ``wants``: what domains want from a second on."""
    runner = Runner(policy, 5.0)
    times = []
    for second in range(seconds):
        for name, share in (wants or {}).get(second, {}).items():
            host.vcpu(name).wants = share
        before = len(policy.views)
        for placed in runner.cycle(host):
            host.vcpu(*placed.key).pcpus = placed.pcpus
        if len(policy.views) > before:
            times.append(second)
        host.wait(1.0)
    return times


@pytest.mark.parametrize(
    ("places", "early", "wants"),
    [
        (A_FAST, True, {}),
        (A_FAST, True, {"a": 0.5}),
        (A_FAST, True, {"a": 0.0, "b": 0.3}),
        (A_SLOW, True, {"a": 0.0}),
        (A_FAST, False, {"a": 0.0}),
    ],
    ids=["all is as before", "a pause", "no other is busy", "it has a slow core", "not wanted"],
)
def test_asked_once_an_interval(host, places, early, wants):
    """Unless a vCPU with a fast core falls asleep, another one is busy, and the policy wants it."""
    assert asked_s(prompt(places, early), host, 6, {1: wants}) == [0, 5]


def test_asked_early_when_a_fast_core_is_left(host):
    """Its vCPU slept for a second, and another one is busy on a slow core."""
    policy = prompt(A_FAST)

    assert asked_s(policy, host, 6, {1: {"a": 0.0}}) == [0, 2]
    assert {v.key: v.asleep for v in policy.views[1].vcpus} == {A: True, B: False, C: True}


def test_asked_early_when_one_without_a_place_waits(host):
    """It woke up after the decision, and shares a pCPU since."""
    host.vcpu("c").starved = 0.5

    assert asked_s(prompt(A_FAST), host, 5, {2: {"c": 1.0}}) == [0, 3]


def test_once_in_an_interval(host):
    """However often it falls asleep, a vCPU does not make more than two decisions of one."""
    flips = {second: {"a": 0.0 if second % 2 else 1.0} for second in range(1, 31)}

    times = asked_s(prompt(A_FAST), host, 30, flips)

    assert all(b - a >= 4 for a, b in zip(times, times[2:], strict=False))
    assert len(times) <= 2 * 30 / 5


def test_asked_early_when_a_booking_falls_asleep_and_when_it_wakes(host):
    """Best effort may use what it does not, until it comes back."""
    host.add("booked", {"pref_core": "1.8"})
    policy = prompt(BOTH_SLOW)

    assert asked_s(policy, host, 12, {1: {"booked": 0.0}, 8: {"booked": 1.0}}) == [0, 2, 7, 9]
    free = [round(v.free_cores[2], 3) for v in policy.views]
    assert free == [0.1, 1.0, 1.0, 0.1]
    assert all(v.booked == FAST for v in policy.views)


def test_the_unused_part_of_a_booking_is_free_after_a_while(host):
    """Half of the time in short bursts: half of it is free, once that shows to be usual."""
    host.add("booked", {"pref_core": "1.8"})
    policy = prompt(BOTH_SLOW)

    asked_s(policy, host, 121, {0: {"booked": 0.45}})

    free = [v.free_cores[2] for v in policy.views]
    assert free[0] == pytest.approx(0.1)
    assert free == sorted(free)
    assert free[2] < 0.3
    assert free[-1] == pytest.approx(0.55, abs=0.02)


def test_small_and_idle_bookings_start_no_decisions(host):
    """One that wakes up for a moment, and one that leaves next to nothing when it sleeps."""
    host.add("idle", {"pref_core": "0.6"})
    host.add("small", {"pref_core": "0.1", "core_type": "fast"})
    wants = {0: {"idle": 0.01}, 6: {"small": 0.0}, 7: {"idle": 0.05}}

    assert asked_s(prompt(BOTH_SLOW), host, 11, wants) == [0, 5, 10]
