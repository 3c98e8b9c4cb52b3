"""What a scheduler knows of the hosts: newest reports, and its own decisions until they show."""

import pytest

from amp_nova.nova_plugins import options
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.scheduling.host_fit import fit
from amp_nova.wire.host_report import encode
from tests.snapshots import NOW_S, ask, instance, snapshot

oslo_config = pytest.importorskip("oslo_config.cfg")


class Clock:
    """Time that passes when a test says so."""

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
    return HostStates(conf, clock, clock)


def heard(states, *instances, **said):
    """Have the states accept a report; whether they did."""
    return states.accept(encode(snapshot(*instances, **said)))


def test_the_newest_report_counts(states):
    """Reports may come late or twice: an older one changes nothing."""
    assert heard(states, instance("a", (0.5, 0)), sequence=2)
    assert not heard(states, sequence=1)
    assert not heard(states, sequence=2)

    assert set(states.entry("host1").snapshot.instance_of) == {"a"}
    assert states.refused == {"old": 2}
    assert states.entry("host2") is None


def test_an_agent_that_restarted_counts_from_one(states, clock):
    """Its reports are newer by the time they were made."""
    heard(states, sequence=40)
    clock.now_s += 5

    assert heard(states, boot_id="next", sequence=1, time_s=clock.now_s)
    assert not heard(states, sequence=41, time_s=NOW_S)
    assert states.entry("host1").snapshot.origin.boot_id == "next"


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        (encode(snapshot(time_s=NOW_S - 200)), "old"),
        (encode(snapshot(time_s=NOW_S + 100)), "future"),
        (encode(snapshot()).replace('"version":1', '"version":9'), "version"),
        ("{}", "malformed"),
        ({"version": 1}, "malformed"),
        ("x" * (1 << 21), "oversized"),
    ],
)
def test_what_cannot_be_used_is_refused_counted_and_said(states, caplog, report, kind):
    """One line a minute and kind, however many come."""
    for _ in range(3):
        assert not states.accept(report)

    assert states.refused == {kind: 3}
    assert len(caplog.records) == 1
    assert kind in caplog.text
    assert states.entry("host1") is None


def test_a_silent_host_is_stale_and_at_last_forgotten(states, clock):
    """Its last report stays for those who judge by it."""
    heard(states)
    assert states.entry("host1").usable(states.oldest_s())

    clock.now_s += 181
    assert not states.entry("host1").usable(states.oldest_s())
    clock.now_s += 3600
    heard(states, node="host2", time_s=clock.now_s)

    assert list(states.nodes()) == ["host2"]


class TestDecisions:
    """Between a decision and the agent's next report."""

    def room_for(self, states, asked, node="host1"):
        return fit(states.entry(node).room(), asked).refused is None

    def test_a_decision_takes_room_at_once(self, states):
        """The next request sees what the last one took."""
        heard(states)
        states.decided("host1", "a", ask(pref_core=2))

        assert not self.room_for(states, ask(pref_core=2))
        assert self.room_for(states, ask(pref_core=1))

    def test_the_agents_report_takes_its_place(self, states):
        """Counted once, not twice."""
        heard(states)
        states.decided("host1", "a", ask(pref_core=0.5))
        heard(states, instance("a", (0.5, 0)), sequence=2)

        assert states.entry("host1").asks() == {}
        assert self.room_for(states, ask(2, pref_core__0=0.5, pref_core__1=1))

    def test_a_report_without_it_does_not_undo_it(self, states):
        """The guest may not have started yet."""
        heard(states)
        states.decided("host1", "a", ask(pref_core=2))
        heard(states, sequence=2)

        assert not self.room_for(states, ask(pref_core=2))

    def test_it_expires(self, states, clock):
        """A guest that never came frees its room after two minutes."""
        heard(states)
        states.decided("host1", "a", ask(pref_core=2))
        clock.now_s += 121

        assert self.room_for(states, ask(pref_core=2))

    def test_what_nova_drops_frees_its_room_at_once(self, states):
        """Of several instances asked for together, none is started when one finds no host."""
        heard(states)
        dropped = []
        states.decided("host1", "a", ask(pref_core=2), lambda: bool(dropped))
        assert not self.room_for(states, ask(pref_core=2))

        dropped.append("a")
        assert self.room_for(states, ask(pref_core=2))

    def test_the_same_room_is_not_taken_twice(self, states):
        """Two requests passed the filter at the same time: the second to turn to it is told no."""
        heard(states)

        assert states.reserve("host1", "a", ask(pref_core=2))
        assert not states.reserve("host1", "b", ask(pref_core=2))
        assert states.reserve("host1", "a", ask(pref_core=2))

    def test_a_claim_that_failed_gives_the_room_back(self, states, clock):
        """At once when the instance turns to another host, else after a while."""
        heard(states)
        heard(states, node="host2")
        states.reserve("host1", "a", ask(pref_core=2))
        states.reserve("host2", "a", ask(pref_core=2))
        assert states.reserve("host1", "b", ask(pref_core=2))

        clock.now_s += 11
        assert self.room_for(states, ask(pref_core=2), "host2")

    def test_alternates_take_no_room(self, states):
        """Nova names other hosts for a retry once an instance has one."""
        heard(states)
        heard(states, node="host2")
        states.reserve("host1", "a", ask(pref_core=2))
        states.decided("host1", "a", ask(pref_core=2))

        assert states.reserve("host2", "a", ask(pref_core=2))
        assert self.room_for(states, ask(pref_core=2), "host2")

    def test_an_instance_waits_on_one_host_only(self, states):
        """Decided anew, or turned up elsewhere: the first host has its room back."""
        heard(states)
        heard(states, node="host2")
        states.decided("host1", "a", ask(pref_core=2))
        states.decided("host2", "a", ask(pref_core=2))
        assert self.room_for(states, ask(pref_core=2), "host1")
        assert not self.room_for(states, ask(pref_core=2), "host2")

        heard(states, instance("a", (2.0, 2)), sequence=2)
        assert self.room_for(states, ask(pref_core=2), "host2")

    def test_a_live_migration_counts_on_both_hosts(self, states):
        """The source's reports go on showing it; that is not where it is going."""
        heard(states, instance("a", (2.0, 2)))
        heard(states, node="host2")
        states.decided("host2", "a", ask(pref_core=2))
        heard(states, instance("a", (2.0, 2)), sequence=2)

        assert not self.room_for(states, ask(pref_core=2), "host1")
        assert not self.room_for(states, ask(pref_core=2), "host2")

    def test_what_its_agent_sees_no_more_keeps_its_room_as_long_as_nova_has_it_there(self, states):
        """A stopped instance, or all of a host that starts again."""
        heard(states, instance("a", (1.5, 2)), instance("b", (0.5, 0)), instance("c", None))
        heard(states, sequence=2)
        assert states.entry("host1").away == {"a", "b"}

        states.gone("host1", {"a": "Nova's", "c": "Nova's"})
        assert not self.room_for(states, ask(pref_core=2))
        assert self.room_for(states, ask(2, pref_core=1))
        assert not states.reserve("host1", "d", ask(pref_core=2))
        assert states.reserve("host1", "a", ask(pref_core=2))  # resized while it is stopped

    def test_it_is_back_with_what_it_books_now(self, states):
        """Not counted twice."""
        heard(states, instance("a", (2.0, 2)))
        heard(states, sequence=2)
        heard(states, instance("a", (0.5, 2)), sequence=3)

        assert states.entry("host1").asks() == {}

    def test_a_resize_on_the_same_host_counts_the_new_size_until_it_shows(self, states):
        """The old share goes on being reported until the guest starts anew."""
        heard(states, instance("a", (0.5, 0)))
        states.decided("host1", "a", ask(pref_core=2))
        heard(states, instance("a", (0.5, 0)), sequence=2)
        assert not self.room_for(states, ask(pref_core=2))

        heard(states, instance("a", (2.0, 2)), sequence=3)
        assert states.entry("host1").asks() == {}


def test_answers_last_as_long_as_the_host_stays_the_same(states):
    """A report that repeats itself costs nothing; a new state is thought through anew."""
    heard(states)
    states.entry("host1").fits[1] = "remembered"
    heard(states, sequence=2)
    assert states.entry("host1").fits == {1: "remembered"}

    heard(states, instance("a", (0.5, 0)), sequence=3)
    assert states.entry("host1").fits == {}
