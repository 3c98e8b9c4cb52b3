"""A small booking is kept to the moment on a real guest, by what the kernel counts."""

import itertools
import statistics as st
import time

from tests.lab import SLOW, Agent

WINDOW_S = 0.5
WINDOWS = 16


def spread(guest):
    """How far half seconds of CPU time are apart: standard deviation over mean."""
    begin, marks = time.monotonic(), []
    for number in range(WINDOWS + 1):
        time.sleep(max(0.0, begin + WINDOW_S * number - time.monotonic()))
        marks.append((time.monotonic(), guest.cpu_ns()[0]))
    shares = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(marks)]
    return st.pstdev(shares) / st.fmean(shares), st.fmean(shares) / 1e9


def test_a_small_booking_is_delivered_evenly(guests, tmp_path):
    """The kernel by itself gives 5 % of a core in lumps of its tick; the agent keeps it evenly."""
    guest = guests.guest("small", {"amp:pref_core": "0.05"}, cpuset=str(SLOW))
    found = {}
    for name, more in (("alone", "exact_limits_max = 0\n"), ("exact", "")):
        agent = Agent(tmp_path / name, more=more).start()
        try:
            time.sleep(3)
            found[name], share = spread(guest)
            assert abs(share / 0.05 - 1) < 0.05
        finally:
            agent.stop()

    assert found["exact"] < found["alone"], found
