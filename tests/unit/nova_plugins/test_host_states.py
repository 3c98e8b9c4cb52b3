# SPDX-License-Identifier: Apache-2.0
"""What a scheduler knows about hosts: the last reports, and its own decisions until they show."""

import itertools
import statistics
from types import SimpleNamespace
from unittest import mock

import pytest

from amp_nova.nova_plugins import host_entry, options
from amp_nova.nova_plugins.host_entry import Query
from amp_nova.nova_plugins.host_states import CONTENDED, HostStates
from amp_nova.scheduling import pending
from amp_nova.scheduling.host_fit import fit
from amp_nova.scheduling.pending import NovaInstance, Pending
from amp_nova.scheduling.sensitivity import SENSITIVITY_MAX
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import ReportedInstance, ReportedVcpu, Speedup
from tests.support.host_reports import NOW_S, host_report, instance, request

oslo_config = pytest.importorskip("oslo_config.cfg")


class Clock:
    """A clock that a test advances."""

    def __init__(self, now_s):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock(NOW_S)


@pytest.fixture
def states(clock):
    conf = options.register(oslo_config.ConfigOpts())
    conf([])
    return HostStates(conf, clock, lambda node: node != "stranger")


def receive(states, *instances, **fields):
    """Deliver a report; whether it was accepted."""
    return states.accept(encode(host_report(*instances, **fields)))


def decide(states, node, resource, wanted):
    """Nova chose this host."""
    states.decided(node, resource, Pending((wanted,), states._clock()))


def test_the_newest_report_counts(states):
    """Reports may arrive late or twice; an older one changes nothing."""
    assert receive(states, instance("a", (0.5, 0)), sequence=2)
    assert not receive(states, sequence=1)
    assert not receive(states, sequence=2)

    assert set(states.entry("host1").report.by_uuid) == {"a"}
    assert states.reports == {"accepted": 1, "old": 2}
    assert states.entry("host2") is None


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        (encode(host_report(node="stranger")), "unknown_host"),
        (encode(host_report()).replace('"version":2', '"version":9'), "version"),
        ("{}", "malformed"),
        ({"version": 1}, "malformed"),
        ("x" * (1 << 21), "oversized"),
    ],
)
def test_an_unusable_report_is_rejected_counted_and_logged(states, caplog, report, kind):
    """One line per minute and kind, however many arrive."""
    for _ in range(3):
        assert not states.accept(report)

    assert states.reports == {"accepted": 0, kind: 3}
    assert len(caplog.records) == 1
    assert kind in caplog.text
    assert states.entry("host1") is None


@pytest.mark.parametrize("ahead_s", [-1e9, -86400.0, -61.0, 61.0, 86400.0, 1e9])
@pytest.mark.fault("clock of a host is wrong", "its reports are accepted")
def test_a_wrong_clock_does_not_lock_a_host_out(states, clock, ahead_s):
    """Neither one that is wrong from the start nor one that is set while the agent runs."""
    for sequence, time_s in enumerate((NOW_S + ahead_s, NOW_S, NOW_S - ahead_s, NOW_S)):
        clock.now_s += 60
        assert receive(states, sequence=sequence, time_s=max(0.0, time_s))
        assert states.entry("host1").usable(states.oldest_s())


def test_a_forged_report_counts_at_most_until_the_hosts_next(states):
    """In the name of another run of its agent, however often."""
    for sequence in range(1, 4):
        assert receive(states, boot_id="agent", sequence=sequence)
        assert receive(states, boot_id=f"forged{sequence}", sequence=1 << 52)
        assert receive(states, boot_id="agent", sequence=sequence)


def test_nobody_locks_a_host_out_until_its_agent_is_restarted(states, clock):
    """By a report in the name of the run itself, with a greater number than all later ones."""
    assert receive(states, sequence=1)
    assert receive(states, sequence=1 << 52)
    clock.now_s += 60
    assert not receive(states, sequence=2)
    clock.now_s += 121
    assert receive(states, sequence=3)


@pytest.mark.parametrize("found", [ValueError("no core type"), KeyError("fast"), float("nan")])
def test_a_report_that_cannot_be_scored_is_refused_and_the_last_one_stays(
    states, monkeypatch, found
):
    """It is evaluated before it is stored, so requests never meet it; NaN has no order."""
    assert receive(states, instance("a", (0.5, 0)), sequence=1)

    def demand(*_args):
        if isinstance(found, Exception):
            raise found
        return mock.Mock(throughput=found)

    with monkeypatch.context() as patched:
        patched.setattr(host_entry.placement_score, "best_effort_demand", demand)
        assert not receive(states, instance("b", (0.5, 0)), sequence=2)

    assert states.reports["unusable"] == 1
    assert set(states.entry("host1").report.by_uuid) == {"a"}
    assert receive(states, instance("b", (0.5, 0)), sequence=2)


def test_what_is_cached_is_bounded(states):
    """However many requests there are while a host stays the same."""
    receive(states, sequence=1)
    for number in range(1000):
        states.entry("host1").results[str(number)] = number
    receive(states, sequence=2)

    assert states.entry("host1").results == {}


def test_instances_that_left_the_reports_are_bounded(states, monkeypatch):
    """Nova may have none of them, and be silent."""
    monkeypatch.setattr(pending, "VCPUS_MAX", 11)
    for i in range(100):
        receive(states, instance(f"instance-{i}", (0.01, 0)), sequence=i + 1)

    assert len(states.entry("host1").pending) == 11


@pytest.mark.parametrize("votes", [[0.2], [0.2, 0.4], [0.2, 0.4, 0.9], [0.2, 0.3, 0.4, 0.9]])
def test_one_host_moves_the_sensitivity_of_a_flavor_at_most_to_the_next_hosts(states, votes):
    """However many instances it reports; each host counts once, and only what it reports now."""

    def report(node, sensitivity, instances=1, sequence=1):
        speedup = Speedup(1.0 + sensitivity)
        vcpus = (ReportedVcpu(0, cpus_allowed_list="0-2", speedup=speedup),)
        there = [
            ReportedInstance(f"{node}-{n}", vcpus, flavor="f", image="i") for n in range(instances)
        ]
        assert receive(states, *there, node=node, sequence=sequence)

    for number, vote in enumerate(votes):
        report(f"host{number}", vote)
    before = states.sensitivity(("f", "i"))
    assert before == pytest.approx(statistics.median(votes))

    for sequence, lie in enumerate((0.0, 99.0)):
        report("liar", lie, instances=100, sequence=sequence + 1)
        after = states.sensitivity(("f", "i"))
        neighbours = [v for v in votes if v <= before], [v for v in votes if v >= before]
        if len(votes) > 1:
            assert max(neighbours[0][:-1], default=votes[0]) - 1e-9 <= after
            assert after <= min(neighbours[1][1:], default=votes[-1]) + 1e-9
        assert 0.0 <= after <= SENSITIVITY_MAX

    receive(states, node="liar", sequence=9)
    assert states.sensitivity(("f", "i")) == before
    assert states.sensitivity(("f", "another")) is None


@pytest.mark.parametrize("stale_report", ["refuse", "last"])
def test_a_silent_host_becomes_stale_and_is_forgotten_later(states, clock, stale_report):
    """Not if its last report counts, however old it is."""
    states._options.set_override("stale_report", stale_report, "amp_scheduler")
    receive(states)
    assert states.entry("host1").usable(states.oldest_s())

    clock.now_s += 181
    assert not states.entry("host1").usable(states.oldest_s())
    clock.now_s += 3600
    receive(states, node="host2", time_s=clock.now_s)

    assert (states.entry("host1") is None) is (stale_report == "refuse")
    assert states.entry("host2") is not None


@pytest.mark.parametrize("stale_report", ["refuse", "last"])
def test_what_is_pending_on_a_host_outlives_its_silence(states, clock, stale_report):
    """A build there is not lost when another host's report makes a worker forget it."""
    states._options.set_override("stale_report", stale_report, "amp_scheduler")
    receive(states)
    decide(states, "host1", "a", request(pref_core=2))
    clock.now_s += 4000
    receive(states, node="host2", time_s=clock.now_s)
    assert states.pending() == {"a"}

    receive(states, sequence=2, time_s=clock.now_s)
    assert set(states.entry("host1").pending) == {"a"}
    assert fit(states.entry("host1").capacity, request(pref_core=2)).refused


def test_a_request_that_ran_out_of_time_examines_the_host_that_nova_turns_to(states, monkeypatch):
    """Hosts of which it knows nothing yet pass; each takes 10 ms here."""
    now_s = itertools.count(0.0, 0.01)
    monkeypatch.setattr(host_entry, "time", SimpleNamespace(thread_time=now_s.__next__))
    for number in range(100):
        receive(states, instance("a", (1.6, 2), (0.6, 0), (0.6, 1)), node=f"host{number}")
    entries = [states.entry(f"host{number}") for number in range(100)]
    query = Query("b", request(2, pref_core=0.4))
    fits = [query.fit(entry) for entry in entries]

    assert 0 < sum(each is not None for each in fits) < 10
    assert fits[-1] is None
    assert not query.turned().fit(entries[-1]).refused
    refused = [query.turned().fit(entry) for entry in reversed(entries)]
    assert refused[-1] is not None, "known from before"
    assert None in refused, "not more than its time in all"


class TestDecisions:
    """Between a decision and the agent's next report."""

    def fits(self, states, requested, node="host1"):
        return fit(states.entry(node).capacity, requested).refused is None

    @pytest.mark.parametrize(
        ("nova", "counts"),
        [
            ({}, True),  # its cell is silent
            ({"a": NovaInstance(busy=True)}, True),  # it is being built
            ({"a": NovaInstance({"host1": ()}, busy=True)}, True),
            ({"a": NovaInstance({"host1": ()})}, True),  # the report is late
            ({"a": NovaInstance()}, False),  # it failed
            ({"a": NovaInstance({"host2": ()})}, False),  # built or migrated elsewhere
            ({"a": None}, False),  # deleted
        ],
    )
    def test_a_reservation_ends_when_nova_says_so(self, states, clock, nova, counts):
        """However long that takes; what was read before the decision says nothing about it."""
        receive(states)
        decide(states, "host1", "a", request(pref_core=2))
        states.follow({"a": None}, clock())
        assert not self.fits(states, request(pref_core=2))

        clock.now_s += 86400
        receive(states, sequence=2, time_s=clock())
        states.follow(nova, clock())
        assert self.fits(states, request(pref_core=2)) is not counts

    def test_a_failed_claim_frees_its_capacity(self, states, clock):
        """At once when the instance tries another host, otherwise when Nova says that it failed."""
        receive(states)
        receive(states, node="host2")
        wanted = request(pref_core=2)
        assert not states.reserve("host1", Query("a", wanted)).refused
        states.release("host1", "a")
        assert not states.reserve("host2", Query("a", wanted)).refused
        assert not states.reserve("host1", Query("b", wanted)).refused

        clock.now_s += 1
        states.follow({"a": NovaInstance()}, clock())
        assert self.fits(states, wanted, "host2")

    def test_an_instance_that_left_keeps_its_capacity_while_nova_has_it_there(self, states, clock):
        """A hard reboot undefines the domain; a host that restarts has none for a while."""
        receive(states, instance("a", (1.5, 2)), instance("b", (0.5, 0)), instance("c", None))
        receive(states, sequence=2)
        assert set(states.entry("host1").pending) == {"a", "b"}

        clock.now_s += 1
        states.follow({"a": NovaInstance({"host1": ()}), "b": None}, clock())
        assert not self.fits(states, request(pref_core=2))
        assert self.fits(states, request(2, pref_core=1))
        assert states.pending() == {"a"}
        assert states.reserve("host1", Query("d", request(pref_core=2))).refused
        assert not states.reserve(
            "host1", Query("a", request(pref_core=2))
        ).refused  # resized while stopped

    def test_what_is_gone_holds_its_capacity_until_nova_says_that_it_left(self, states, clock):
        """Until then nobody gets it, but a request may wait for it, unless Nova has it there."""
        receive(states, instance("a", (0.5, 0)), instance("b", (1.5, 2)))
        receive(states, sequence=2)
        query = Query("c", request(pref_core=1.5))
        assert query.may_fit(states.entry("host1"))
        assert states.reserve("host1", query) == CONTENDED

        clock.now_s += 1
        deleting = NovaInstance({"host1": ()}, busy=True)
        states.follow({"a": NovaInstance({"host1": ()}), "b": deleting}, clock())
        assert states.reserve("host1", query) == CONTENDED

        states.follow({"b": None}, clock())
        assert not states.reserve("host1", query).refused
        assert states.reserve("host1", Query("d", request(pref_core=1.5))) == CONTENDED

    @pytest.mark.parametrize(
        ("needs", "counts"),
        [
            ({"host1": (request(pref_core=2),)}, True),
            ({"host1": (request(pref_core=0.5), request(pref_core=2))}, True),  # it may be reverted
            ({"host2": (request(pref_core=2),)}, False),
            ({"host1": ()}, False),  # it books nothing
        ],
    )
    @pytest.mark.parametrize("reported", [None, 0.5])
    def test_what_nova_has_on_its_way_counts_though_nobody_decided(
        self, states, clock, needs, counts, reported
    ):
        """A decision from before the scheduler started, or a host given as az:host."""
        receive(states, *([instance("a", (reported, 2))] if reported else []))
        states.follow({"a": NovaInstance(needs, busy=True)}, clock())
        assert self.fits(states, request(pref_core=1.5)) is not counts

        # Once it has arrived it is what the report says.
        clock.now_s += 1
        receive(states, instance("a", (0.5, 2)), sequence=2)
        states.follow({"a": NovaInstance({"host1": (request(pref_core=0.5),)})}, clock())
        assert self.fits(states, request(pref_core=1.5))

    def test_an_instance_that_is_back_counts_once(self, states, clock):
        """With the booking it had, also before Nova says that it is there."""
        receive(states, instance("a", (1.5, 2)))
        receive(states, sequence=2)
        receive(states, instance("a", (1.5, 2)), sequence=3)
        assert self.fits(states, request(2, pref_core__0=1, pref_core__1=0.5))

        clock.now_s += 1
        states.follow({"a": NovaInstance({"host1": ()})}, clock())
        assert not states.pending()

    @pytest.mark.parametrize("now", [0.5, 2.0])
    def test_a_resize_on_the_same_host_may_be_reverted(self, states, clock, now):
        """To the larger size, until Nova is done with it and says which size it has."""
        receive(states, instance("a", (2.0, 2)))
        decide(states, "host1", "a", request(pref_core=0.5))
        receive(states, instance("a", (0.5, 0)), sequence=2)
        clock.now_s += 1
        for busy in (True, False):
            states.follow({"a": NovaInstance({"host1": ()}, busy=busy)}, clock())
            assert not self.fits(states, request(pref_core=2))

        states.follow({"a": NovaInstance({"host1": (request(pref_core=now),)})}, clock())
        assert self.fits(states, request(pref_core=2)) is (now == 0.5)
        receive(states, instance("a", (now, 2)), sequence=3)
        states.follow({"a": NovaInstance({"host1": ()})}, clock() + 1.0)
        assert not states.pending()

    def test_a_resize_on_the_same_host_counts_the_new_size_until_it_is_reported(self, states):
        """The old size is reported until the guest restarts."""
        receive(states, instance("a", (0.5, 0)))
        decide(states, "host1", "a", request(pref_core=2))
        receive(states, instance("a", (0.5, 0)), sequence=2)
        assert not self.fits(states, request(pref_core=2))

        receive(states, instance("a", (2.0, 2)), sequence=3)
        assert not self.fits(states, request(pref_core=2))


def test_results_are_cached_while_the_state_of_the_host_is_the_same(states):
    """A report of a new state discards them."""
    receive(states)
    states.entry("host1").results["key"] = "cached"
    receive(states, sequence=2)
    assert states.entry("host1").results == {"key": "cached"}

    receive(states, instance("a", (0.5, 0)), sequence=3)
    assert states.entry("host1").results == {}
