"""Which report of a host counts, whatever the bus does to them and whoever sends more."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("oslo_config", reason="oslo.config is not installed")

from amp_nova.exceptions import ReportInvalid
from amp_nova.scheduling.report_order import SILENCE_MAX, advance
from amp_nova.wire.host_report import Origin

AGE_MAX_S = 180.0
INTERVAL_S = 60.0


class Host:
    """A host whose agent reports once a minute, is restarted, and reboots."""

    def __init__(self):
        self.booted_s, self.now_s, self.run, self.sequence = -5000.0, 0.0, "run0", 0

    def step(self, event):
        """Let a minute pass, in which this happens; the report that is sent then."""
        self.now_s += INTERVAL_S
        if event != "nothing":
            self.run, self.sequence = str(uuid.uuid4()), 0
        if event == "reboot":
            self.booted_s = self.now_s - 30.0
        self.sequence += 1
        return Origin("host", self.run, self.sequence, 0.0, self.now_s - self.booted_s)


class Scheduler:
    """What it has accepted."""

    def __init__(self):
        self.order = None

    def receive(self, origin, now_s):
        """Whether a report counts."""
        try:
            self.order = advance(self.order, origin, now_s, AGE_MAX_S)
        except ReportInvalid:
            return False
        return True


events = st.lists(st.sampled_from(["nothing"] * 4 + ["restart", "reboot"]), min_size=1, max_size=12)


@given(events, st.lists(st.floats(0.0, 20.0), min_size=12, max_size=12))
def test_every_report_that_arrives_in_order_counts(happened, delays_s):
    """Through restarts and reboots, with delays that vary but leave the order."""
    host, scheduler = Host(), Scheduler()
    for event, delay_s in zip(happened, delays_s, strict=False):
        origin = host.step(event)
        assert scheduler.receive(origin, host.now_s + delay_s)


@given(events, st.data())
def test_no_report_counts_twice_or_after_a_later_one(happened, data):
    """The bus repeats any earlier report at any time: it is refused."""
    host, scheduler, sent = Host(), Scheduler(), []
    for event in happened:
        sent.append(host.step(event))
        assert scheduler.receive(sent[-1], host.now_s)
        for again in data.draw(st.lists(st.sampled_from(sent), max_size=3)):
            assert not scheduler.receive(again, host.now_s + 1.0)


@given(st.integers(0, 3), st.integers(1, 5), st.sampled_from(["nothing", "restart", "reboot"]))
def test_what_a_partition_held_back_does_not_count(before, held_s, event):
    """A report that was under way for longer than its greatest age, of the run that is known."""
    host, scheduler = Host(), Scheduler()
    for _ in range(before + 1):
        assert scheduler.receive(host.step("nothing"), host.now_s)
    late = host.step("nothing")
    now_s = host.now_s + AGE_MAX_S + held_s
    assert not scheduler.receive(late, now_s)
    host.now_s = now_s
    assert scheduler.receive(host.step(event), host.now_s)


forged = st.builds(
    Origin,
    st.just("host"),
    st.sampled_from(["forged", "other", "third"]),
    st.integers(0, 1 << 52),
    st.just(0.0),
    st.one_of(st.floats(0.0, 1e18), st.floats(4000.0, 8000.0)),
)


@given(st.lists(st.lists(forged, max_size=3), max_size=12))
def test_a_forged_run_counts_at_most_until_the_hosts_next_report(lies):
    """Whatever uptime and sequence number it claims, and however often."""
    host, scheduler = Host(), Scheduler()
    assert scheduler.receive(host.step("nothing"), host.now_s)
    for lying in lies:
        for number, lie in enumerate(lying):
            scheduler.receive(lie, host.now_s + 1.0 + number)
        assert scheduler.receive(host.step("nothing"), host.now_s)


@given(events, st.lists(forged, max_size=5), st.booleans())
def test_nobody_is_locked_out_for_longer_than_the_silence(happened, lies, own_run):
    """Even by reports with the run's own id, and whatever happens on the host."""
    host, scheduler = Host(), Scheduler()
    assert scheduler.receive(host.step("nothing"), host.now_s)
    for lie in lies:
        run = host.run if own_run else lie.boot_id
        scheduler.receive(Origin("host", run, lie.sequence, 0.0, lie.uptime_s), host.now_s + 1.0)
    refused = 0
    for event in [*happened, *["nothing"] * 8]:
        refused = 0 if scheduler.receive(host.step(event), host.now_s) else refused + 1
        assert refused * INTERVAL_S <= SILENCE_MAX * AGE_MAX_S
    assert refused == 0


def test_clocks_that_drift_apart_do_not_make_reports_late():
    """A host whose clock is 50 ppm slow for a year, reporting once a minute."""
    scheduler, drift = Scheduler(), 50e-6
    for minute in range(0, 525_600, 5):
        now_s = 60.0 * minute
        assert scheduler.receive(Origin("host", "run", minute, 0.0, now_s * (1 - drift)), now_s)
