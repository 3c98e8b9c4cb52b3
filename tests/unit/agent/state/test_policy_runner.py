# SPDX-License-Identifier: Apache-2.0
"""The policy is asked once an interval, and not trusted."""

import pytest

from amp_nova.agent.state.policy_runner import FAULTS_MAX
from amp_nova.policies.api import Decision
from tests.support import hosts
from tests.support.policy_runs import Answer, Runner

KEY = ("vm", 0)


@pytest.fixture
def host():
    """A best-effort vCPU and a booked one on two slow pCPUs (0, 1) and a fast one (2)."""
    host = hosts.FakeHost()
    host.add("vm", {"weight": "2"})
    host.add("booked", {"pref_core": "1.5"})
    return host


def test_cycles_that_are_not_quite_punctual_do_not_stretch_an_interval(host):
    """With an interval of one cycle it is asked in every cycle, early or late by a little."""
    policy = Answer({KEY: frozenset({2})})
    runner = Runner(policy, 1.0)

    for late_s in (1.003, 0.998, 0.999, 1.001, 0.997):
        runner.cycle(host)
        host.wait(late_s)

    assert len(policy.views) == 5


def test_not_asked_while_all_is_booked(host):
    """There is nothing that it could place; it is asked as soon as there is."""
    policy = Answer()
    runner = Runner(policy, 1.0)
    del host.domains["vm"]
    assert runner.cycle(host) == []
    assert policy.views == []

    host.add("free")
    runner.cycle(host)
    assert len(policy.views) == 1


def go_back(host):
    """The clock goes back."""
    host.time_ns = 10**8


@pytest.mark.parametrize("event", [go_back, lambda host: host.restart("vm")])
def test_a_clock_or_counters_that_go_back_do_not_silence_it(host, event):
    """The policy goes on; what a guest did is then unknown rather than negative."""
    policy = Answer()
    runner = Runner(policy, 2.5)
    host.wait(5.0)
    runner.cycle(host)
    event(host)
    host.wait(2.5)
    runner.cycle(host)

    assert len(policy.views) == 2
    assert policy.views[1].vcpus[0].demand_ratio is None


def test_what_a_policy_sees(host):
    """Best-effort vCPUs only, with what they ran and wanted; and what bookings leave."""
    policy = Answer()
    runner = Runner(policy, 1.0)
    runner.cycle(host)
    host.vcpu("vm").starved = 0.75
    host.wait(2.0)
    runner.cycle(host)

    first, second = policy.views
    assert [v.key for v in second.vcpus] == [KEY]
    assert (first.vcpus[0].utilization_ratio, first.vcpus[0].demand_ratio) == (None, None)
    assert second.vcpus[0].utilization_ratio == pytest.approx(0.25)
    assert second.vcpus[0].demand_ratio == pytest.approx(1.0)
    assert second.vcpus[0].weight == 2.0
    assert second.free_cores == {0: 1.0, 1: 1.0, 2: 0.25}


def test_what_must_not_be_touched_is_not_shown(host):
    """Nor can it be placed; its room is kept if it is booked."""
    policy = Answer()
    host.add("free")
    Runner(policy, 1.0).cycle(host, excluded=["vm", "booked"])

    assert [v.key for v in policy.views[0].vcpus] == [("free", 0)]
    assert policy.views[0].free_cores[2] == 0.25


@pytest.mark.parametrize("pcpus", [{1, 2}, [1, 2], (1, 2), range(1, 3), {1: "x", 2: "y"}])
def test_good_places_are_the_entitlement(host, pcpus):
    """In any form, with the policy's name as the reason; the bandwidth is not its to set."""
    (placed,) = Runner(Answer({KEY: pcpus}), 1.0).cycle(host)

    assert (placed.key, placed.pcpus, placed.limit) == (KEY, frozenset({1, 2}), None)
    assert isinstance(placed.pcpus, frozenset)
    assert placed.reason == "policy answer"


BAD = [
    RuntimeError("no idea"),
    None.__class__,
    7,
    [KEY],
    {("stranger", 0): frozenset({0}), KEY: frozenset({0})},
    {None: frozenset({0})},
    {("booked", 0): frozenset({0})},
    {KEY: frozenset()},
    {KEY: frozenset({9})},
    {KEY: 2},
    {KEY: "2"},
    {KEY: [1.5]},
    {KEY: [[2]]},
]


@pytest.mark.parametrize("answer", BAD, ids=repr)
def test_a_bad_plan_is_not_applied(host, answer, caplog):
    """Not even its good parts: it is counted and the log says why."""
    runner = Runner(Answer(answer), 1.0)

    assert runner.cycle(host) == []
    assert runner.state.rejected == 1
    assert "policy answer returned an invalid plan" in caplog.text


def test_other_core_types_are_refused():
    """A plan stays on the core type of the instance's flavor."""
    host = hosts.FakeHost()
    host.add("vm", {"core_type": "slow"})
    policy = Answer({KEY: frozenset({2})})
    runner = Runner(policy, 1.0)
    assert runner.cycle(host) == []
    assert runner.state.rejected == 1
    assert policy.views[0].vcpus[0].allowed == {0, 1}


def test_dropped_for_none_after_five_in_a_row(host, caplog):
    """The host's own scheduler is trusted more than that: no vCPU stays tied to a pCPU."""
    policy = Answer({KEY: frozenset({2})})
    runner = Runner(policy, 1.0)
    runner.cycle(host)
    policy.answer = RuntimeError("no idea")

    answers = []
    for _ in range(FAULTS_MAX + 3):
        host.wait(1.0)
        answers.append([(e.key, e.pcpus) for e in runner.cycle(host)])

    kept, let_go = [(KEY, {2})], [(KEY, {0, 1, 2})]
    assert answers == [*[kept] * (FAULTS_MAX - 1), let_go, [], [], []]
    assert runner.state.policy.name == "none"
    assert runner.state.rejected == FAULTS_MAX
    assert "using none" in caplog.text


def test_what_a_policy_remembers_is_shown_to_it_again(host):
    """A plan that is refused leaves no memory."""
    policy = Answer(Decision({}, "first"))
    runner = Runner(policy, 1.0)
    runner.cycle(host)
    for answer in (Decision({KEY: frozenset({9})}, "refused"), Decision({}, "third"), None):
        policy.answer = answer
        host.wait(1.5)
        runner.cycle(host)

    assert [v.memory for v in policy.views] == [None, "first", "first", "third"]
    assert [v.elapsed_s for v in policy.views] == [0.0, 1.5, 1.5, 1.5]
    assert {v.interval_s for v in policy.views} == {1.0}


def test_a_good_plan_between_bad_ones_saves_it(host):
    """Only faults in a row count."""
    policy = Answer()
    runner = Runner(policy, 1.0)

    for turn in range(FAULTS_MAX * 3):
        policy.answer = {} if turn % FAULTS_MAX == 0 else RuntimeError("no idea")
        runner.cycle(host)
        host.wait(1.0)

    assert runner.state.policy is policy


def test_a_policy_that_wants_to_stop_the_agent_can(host):
    """Ctrl-C is not a bad plan."""
    with pytest.raises(KeyboardInterrupt):
        Runner(Answer(KeyboardInterrupt()), 1.0).cycle(host)
