"""A small booking of Ips is kept to the instruction on a real guest, by what its plugin counts."""

import itertools
import statistics as st
import time

import pytest

from tests.lab import FAST, Agent, quota

WINDOW_S = 1.0
WINDOWS = 12


def seconds(guest, booked, windows=WINDOWS):
    """Instructions of every second over those booked."""
    begin, marks = time.monotonic(), []
    for number in range(windows + 1):
        time.sleep(max(0.0, begin + WINDOW_S * number - time.monotonic()))
        marks.append((time.monotonic(), guest.instructions()[0]))
    return [(b[1] - a[1]) / (b[0] - a[0]) / booked for a, b in itertools.pairwise(marks)]


@pytest.fixture
def little(guests):
    """A guest that books a twentieth of what it would retire, and the number of that."""
    free = guests.guest("free", counter=True, cpuset=str(FAST))
    time.sleep(1)
    before, began_s = free.instructions()[0], time.monotonic()
    time.sleep(2)
    booked = 0.05 * (free.instructions()[0] - before) / (time.monotonic() - began_s)
    guests.clear()
    specs = {"amp:ips": f"{booked:.0f}"}
    return guests.guest("little", specs, counter=True, cpuset=str(FAST)), booked


def test_every_second_of_a_small_booking_is_delivered(little, tmp_path):
    """A limit keeps it on average; portions keep each second. When they end the limit is back."""
    (guest, booked), found = little, {}
    for name, more in (("limit", "exact_ips_max = 0\n"), ("portions", "")):
        agent = Agent(tmp_path / name, more=more).start()
        try:
            time.sleep(4)
            found[name] = seconds(guest, booked)
        finally:
            agent.stop()
        assert 0.02 < quota(guest) < 0.12, name

    print({name: f"{st.fmean(each):.3f} sd {st.pstdev(each):.4f}" for name, each in found.items()})
    assert st.fmean(found["portions"]) == pytest.approx(1.0, abs=0.02)
    assert st.pstdev(found["portions"]) < st.pstdev(found["limit"])


def test_an_agent_that_is_killed_leaves_a_good_part_and_the_next_one_goes_on(little, tmp_path):
    """Nobody is left to put the limit back: what was written last holds."""
    guest, booked = little
    agent = Agent(tmp_path / "first").start()
    time.sleep(4)
    agent.process.kill()
    agent.process.wait()

    assert 0.2 * 0.05 < quota(guest) < 0.12
    agent = Agent(tmp_path / "second").start()
    try:
        time.sleep(3)
        assert st.fmean(seconds(guest, booked, 5)) == pytest.approx(1.0, abs=0.03)
    finally:
        agent.stop()
