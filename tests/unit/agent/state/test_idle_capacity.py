"""A decision that was overtaken by events is made anew before its interval is over."""

from dataclasses import dataclass, field

import pytest

from amp_nova.policies.api import Decision
from tests import hosts
from tests.policy_runs import Runner

FAST, SLOW = frozenset({2}), frozenset({0})
A, B, C = ("a", 0), ("b", 0), ("c", 0)


@dataclass
class Prompt:
    """A policy with one answer that wants to be asked early."""

    answer: dict = field(default_factory=lambda: {A: FAST, B: SLOW})
    early: bool = True
    views: list = field(default_factory=list)
    name: str = "prompt"

    def decide(self, view):
        self.views.append(view)
        return Decision(self.answer, early=self.early)


@pytest.fixture
def host():
    """Three best-effort vCPUs, c asleep, on two slow pCPUs (0, 1) and a fast one (2)."""
    host = hosts.FakeHost()
    for name in "abc":
        host.add(name)
    host.vcpu("c").wants = 0.0
    return host


def asked_s(policy, host, seconds, runner=None, events=()):
    """At which seconds the policy was asked; ``events``: what to do before which second."""
    runner = runner or Runner(policy, 5.0)
    times = []
    for second in range(seconds):
        if second in dict(events):
            dict(events)[second]()
        before = len(policy.views)
        for placed in runner.cycle(host):
            host.vcpu(*placed.key).pcpus = placed.pcpus
        if len(policy.views) > before:
            times.append(second)
        host.wait(1.0)
    return times


def wants(host, name, share):
    return lambda: setattr(host.vcpu(name), "wants", share)


def test_asked_in_time_while_nothing_happens(host):
    """Nothing wakes up or falls asleep: one decision an interval."""
    assert asked_s(Prompt(), host, 11) == [0, 5, 10]


def test_asked_early_when_a_fast_core_is_left(host):
    """Its vCPU slept for a second, and another one is busy on a slow core."""
    policy = Prompt()

    assert asked_s(policy, host, 4, events={1: wants(host, "a", 0.0)}.items()) == [0, 2]
    assert {v.key: v.asleep for v in policy.views[1].vcpus} == {A: True, B: False, C: True}


def test_a_pause_is_no_sleep(host):
    """A vCPU that runs half of the time keeps its core."""
    assert asked_s(Prompt(), host, 5, events={1: wants(host, "a", 0.5)}.items()) == [0]


def test_not_asked_early_for_nothing(host):
    """No vCPU is busy on a slower core; or the sleeper has a slow one."""
    both = {1: lambda: (wants(host, "a", 0.0)(), wants(host, "b", 0.3)())}
    assert asked_s(Prompt(), host, 5, events=both.items()) == [0]

    policy = Prompt({A: SLOW, B: FAST})
    host.vcpu("b").wants = host.vcpu("a").wants = 1.0
    assert asked_s(policy, host, 5, events={1: wants(host, "a", 0.0)}.items()) == [0]


def test_asked_early_when_one_without_a_place_waits(host):
    """It woke up after the decision, and shares a pCPU since."""

    def wake():
        host.vcpu("c").wants, host.vcpu("c").starved = 1.0, 0.5

    assert asked_s(Prompt(), host, 5, events={2: wake}.items()) == [0, 3]


def test_once_in_an_interval(host):
    """However often it falls asleep, a vCPU does not make more than two decisions of one."""
    policy = Prompt()
    flips = {s: wants(host, "a", 0.0 if s % 2 else 1.0) for s in range(1, 31)}

    times = asked_s(policy, host, 30, events=flips.items())

    assert all(b - a >= 4 for a, b in zip(times, times[2:], strict=False))
    assert len(times) <= 2 * 30 / 5


def test_a_policy_that_does_not_want_it_is_asked_once_an_interval(host):
    """As the interface says."""
    policy = Prompt(early=False)

    assert asked_s(policy, host, 6, events={1: wants(host, "a", 0.0)}.items()) == [0, 5]


def test_asked_early_when_a_booking_falls_asleep_and_when_it_wakes(host):
    """Best effort may use what it does not, until it comes back."""
    host.add("booked", {"pref_core": "1.8"})
    policy = Prompt({A: SLOW, B: frozenset({1})})
    events = {1: wants(host, "booked", 0.0), 8: wants(host, "booked", 1.0)}

    assert asked_s(policy, host, 12, events=events.items()) == [0, 2, 7, 9]
    free = [round(v.free_cores[2], 3) for v in policy.views]
    assert free == [0.1, 1.0, 1.0, 0.1]
    assert all(v.booked == FAST for v in policy.views)


def test_the_unused_part_of_a_booking_is_free_after_a_while(host):
    """Half of the time in short bursts: half of it is free, once that shows to be usual."""
    host.add("booked", {"pref_core": "1.8"})
    host.vcpu("booked").wants = 0.45
    policy = Prompt({A: SLOW, B: frozenset({1})})

    asked_s(policy, host, 121)

    free = [v.free_cores[2] for v in policy.views]
    assert free[0] == pytest.approx(0.1)
    assert free == sorted(free)
    assert free[2] < 0.3
    assert free[-1] == pytest.approx(0.55, abs=0.02)


def test_small_and_idle_bookings_start_no_decisions(host):
    """One that wakes up for a moment, and one that leaves next to nothing when it sleeps."""
    host.add("idle", {"pref_core": "0.6"})
    host.add("small", {"pref_core": "0.1", "core_type": "fast"})
    host.vcpu("idle").wants = 0.01
    policy = Prompt({A: SLOW, B: frozenset({1})})
    events = {6: wants(host, "small", 0.0), 7: wants(host, "idle", 0.05)}

    assert asked_s(policy, host, 11, events=events.items()) == [0, 5, 10]


def test_moves_are_limited_per_interval(host):
    """An early decision has what the one before left, and what the time since adds."""
    policy = Prompt()
    runner = Runner(policy, 5.0, moves_max=4)
    host.vcpu("a").pcpus, host.vcpu("b").pcpus = SLOW, FAST

    asked_s(policy, host, 8, runner, {1: wants(host, "a", 0.0)}.items())

    # the first decision moves both; 2 s later 2 x 4 / 5 more may be moved, 5 s later all again
    assert [v.moves_max for v in policy.views] == [4, 3, 4]
