"""Limits are written as a bandwidth period begins; clock and groups are fakes."""

import pytest

from amp_nova.host.cgroup import period_start
from amp_nova.model.bandwidth import Bandwidth


class FakeGroup:
    """A FAKE group: periods begin every ``period_s`` of the clock, or never, or it is gone."""

    def __init__(self, time, period_s=0.1, runs=True, gone=False):
        self.time, self.period_s, self.runs, self.gone = time, period_s, runs, gone

    def bandwidth(self):
        """A limit of that period."""
        if self.gone:
            raise OSError(19, "No such device")
        return Bandwidth(10_000, round(self.period_s * 1e6))

    def periods(self):
        """Periods that began, the first one in the middle of one of the clock's."""
        return int(self.time.now_s / self.period_s + 0.5) if self.runs else 0


class Time:
    """A clock that moves only by sleeping."""

    now_s = 0.0

    def sleep(self, seconds):
        """Let time pass."""
        self.now_s += seconds


@pytest.fixture
def acted():
    """Runs ``at_period_start`` for groups; returns when each was acted on."""

    def acted_(**groups):
        time, when = Time(), {}
        found = {name: FakeGroup(time, **said) for name, said in groups.items()}
        period_start.at_period_start(
            found, lambda key: when.update({key: time.now_s}), lambda: time.now_s, time.sleep
        )
        return when

    return acted_


def test_limit_is_written_when_the_next_period_begins(acted):
    """Each group has periods of its own."""
    when = acted(a={"period_s": 0.1}, b={"period_s": 0.02})

    assert when["a"] == pytest.approx(0.05, abs=2 * period_start.POLL_S)
    assert when["b"] == pytest.approx(0.01, abs=2 * period_start.POLL_S)


def test_group_without_demand_is_written_after_a_period(acted):
    """A group that does not run has no periods to wait for."""
    when = acted(idle={"period_s": 0.02, "runs": False})

    assert when["idle"] == pytest.approx(0.022, abs=2 * period_start.POLL_S)


def test_long_period_is_not_waited_for(acted):
    """A cycle does not wait for a period of a second."""
    when = acted(long={"period_s": 1.0, "runs": False})

    assert when["long"] <= period_start.WAIT_MAX_S + 2 * period_start.POLL_S


def test_group_that_is_gone_is_acted_on_at_once(acted):
    """Acting notices that it is gone; the others wait for their periods."""
    when = acted(gone={"gone": True}, here={"period_s": 0.1})

    assert when["gone"] == 0.0
    assert when["here"] == pytest.approx(0.05, abs=2 * period_start.POLL_S)


def test_nothing_to_write_takes_no_time(acted):
    """No groups, no wait."""
    assert acted() == {}
