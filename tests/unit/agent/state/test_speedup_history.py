"""What was learnt about cache misses is there for the next agent."""

import json

import pytest

from amp_nova.agent.loop import Loop, Settings
from amp_nova.agent.state.speedup_history import KEEP_S, SpeedupHistory
from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.profiling.profiles import ProfileSettings
from amp_nova.profiling.speedup import MissSample
from amp_nova.sim.host import SimHost
from tests import hosts
from tests.unit.sim.builders import guest, topology

TYPES = hosts.topology().core_types
LEARNT = {("vm", 0): MissSample(1, 0, 210.0, 90.0), ("vm", 1): MissSample(1, 0, 190.0, 110.0)}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def test_the_next_agent_knows_what_this_one_learnt(folder):
    """The same samples, as long as core types are the same."""
    SpeedupHistory(folder).keep(TYPES, LEARNT)

    assert SpeedupHistory(folder).recall(TYPES) == LEARNT
    other = hosts.topology({"slow": (2, 1.0), "fast": (1, 2.5)}).core_types
    assert SpeedupHistory(folder).recall(other) == {}


def test_written_once_a_minute_at_most(folder):
    """And only when there is news."""
    now = [0.0]
    history = SpeedupHistory(folder, lambda: now[0])
    first = dict(list(LEARNT.items())[:1])

    history.keep(TYPES, first)
    now[0] = KEEP_S / 2
    history.keep(TYPES, LEARNT)
    assert SpeedupHistory(folder).recall(TYPES) == first

    now[0] = KEEP_S
    history.keep(TYPES, LEARNT)
    assert SpeedupHistory(folder).recall(TYPES) == LEARNT


def test_nothing_learnt_nothing_written(folder):
    """An agent that saw nothing does not wipe what another one knew, nor makes a file."""
    SpeedupHistory(folder).keep(TYPES, {})

    assert list(folder.iterdir()) == []
    assert SpeedupHistory(folder).recall(TYPES) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps({"core_types": repr(TYPES), "lessons": [["vm", 0, [1, 0, 5.0]]]}),
        json.dumps({"core_types": repr(TYPES), "lessons": [["vm", 0, [1, 0, -5.0, 9.0]]]}),
        json.dumps({"core_types": repr(TYPES), "lessons": [["vm", 0, [1, 0, "x", 9.0]]]}),
        json.dumps({"core_types": repr(TYPES), "lessons": [["vm", 0, [7, 0, 5.0, 9.0]]]}),
    ],
)
def test_a_file_that_cannot_be_read_is_learnt_anew(folder, text, caplog):
    """With a line in the log; the agent starts all the same."""
    (folder / "lessons.json").write_text(text)

    assert SpeedupHistory(folder).recall(TYPES) == {}
    assert "speedups are measured again" in caplog.text


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path, caplog):
    """Learning is not worth a failure."""
    history = SpeedupHistory(tmp_path / "missing", iter([0.0, 100.0]).__next__)

    history.keep(TYPES, LEARNT)
    history.keep(TYPES, dict(list(LEARNT.items())[:1]))

    assert caplog.text.count("cannot be written") == 1


def test_a_restart_estimates_as_well_as_before(folder):
    """A guest that never ran on a fast core: what others taught counts for it at once."""
    host = SimHost(topology(fast=1, slow=2), [guest("teacher", speed=1.3), guest("new", speed=1.3)])
    slow, fast = frozenset({1, 2}), frozenset({0})

    def pin(name, pcpus):
        host.apply(Changes((Change((name, 0), (Step(pcpus=pcpus),)),)))

    def known(loop, seconds):
        for _ in range(seconds):
            report = loop.cycle()
            host.advance(host.now_s + 1.0)
        nonlocal history
        history = report.profiles.history
        (found,) = (
            v.profile.speedup for d in report.domains for v in d.vcpus if d.domain.name == "new"
        )
        return found

    history = {}
    first = Loop(host, host)
    pin("new", slow)
    pin("teacher", slow)
    untaught = known(first, 6)
    pin("teacher", fast)
    taught = known(first, 12)
    SpeedupHistory(folder).keep(host.topology.core_types, history)

    recalled = ProfileSettings(recall=SpeedupHistory(folder).recall)
    again = known(Loop(host, host, Settings(profiles=recalled)), 6)

    assert untaught.se > taught.se
    assert (again.value, again.se) == pytest.approx((taught.value, taught.se), rel=0.05)
