"""Other writers of the limits: told, counted, and not fought over."""

import pytest

from amp_nova.agent.state.foreign_changes import Watch
from amp_nova.model.allocation import Grant
from tests import hosts

KEY = ("vm", 0)
MINUTE_S = 60.0


@pytest.fixture
def host():
    """One vCPU that is held at half of a slow core."""
    host = hosts.FakeHost()
    host.add("vm")
    return host


@pytest.fixture
def watch(host):
    """A watch that puts right three times a minute, and knows what was carried out."""
    watch = Watch(3)
    repair(watch, host)
    return watch


def repair(watch, host):
    """What the loop does: it carries the grant out and says so."""
    host.vcpu("vm").pcpus = frozenset({0, 1})
    host.vcpu("vm").bandwidth = hosts.limit(0.5)
    grant = Grant(KEY, frozenset({0, 1}), hosts.limit(0.5), limits=True)
    watch.expect(host.observe(), [grant])


def meddle(host, cores=0.9):
    host.vcpu("vm").bandwidth = hosts.limit(cores)


def look(watch, host, seconds=1.0):
    host.wait(seconds)
    watch.look(host.observe())
    return watch.yields("vm", host.time_ns)


def test_nothing_changed_is_nothing_counted(watch, host):
    """Looking again and again counts nothing."""
    for _ in range(5):
        assert not look(watch, host)

    assert dict(watch.counts) == {}


def test_foreign_changes_are_counted_by_what(watch, host, caplog):
    """Quota and affinity apart; the log names the instance."""
    meddle(host)
    host.vcpu("vm").pcpus = frozenset({2})

    assert not look(watch, host)
    assert watch.counts == {"quota": 1, "affinity": 1}
    assert "name-vm: somebody else changed its limits: put right" in caplog.text


def test_yields_after_too_many(watch, host, caplog):
    """The fourth time within a minute it gives way, for five minutes, and says so."""
    for _ in range(3):
        meddle(host)
        assert not look(watch, host)
        repair(watch, host)
    meddle(host)

    assert look(watch, host)
    assert "left alone for a while" in caplog.text
    watch.expect(host.observe(), [])
    assert look(watch, host, 299.0)
    assert not look(watch, host, 2.0)
    assert watch.counts["quota"] == 4


def test_now_and_then_is_put_right_for_ever(watch, host):
    """Three changes a minute are borne without end."""
    for _ in range(20):
        meddle(host)
        assert not look(watch, host, MINUTE_S / 3)
        repair(watch, host)

    assert watch.counts["quota"] == 20


def test_each_instance_has_its_own_quarrel(watch, host):
    """Who meddles with one does not cost another its limits."""
    host.add("other")
    for _ in range(4):
        repair(watch, host)
        meddle(host)
        look(watch, host)

    assert watch.yields("vm", host.time_ns)
    assert not watch.yields("other", host.time_ns)


def test_a_new_incarnation_is_no_drift(watch, host):
    """A restarted guest has no limits yet; nobody changed them."""
    host.restart("vm")

    look(watch, host)

    assert dict(watch.counts) == {}


def test_a_held_instance_is_no_drift(watch, host):
    """Paused in order to be changed by hand."""
    host.held["vm"] = "paused"
    meddle(host)

    look(watch, host)

    assert dict(watch.counts) == {}


def test_a_domain_that_is_gone_is_forgotten(watch, host):
    """Its quarrel ends with it."""
    for _ in range(4):
        repair(watch, host)
        meddle(host)
        look(watch, host)
    gone = host.domains.pop("vm")
    watch.expect(host.observe(), [])
    host.domains["vm"] = gone

    assert not watch.yields("vm", host.time_ns)
