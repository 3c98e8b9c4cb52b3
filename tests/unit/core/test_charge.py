"""Small limits are kept to the moment, over a kernel's bandwidth control as a model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_nova.core import charge
from amp_nova.core.capacity import Bandwidth
from amp_nova.core.charge import Look, Track
from tests.kernel import MS, SECOND, Kernel


def drive(kernel, until_ns, track=None, late_ns=0):
    """Look when it is time to; CPU time as periods begin, the looks taken, and the last track."""
    track = Track(kernel.limit, due_ns=kernel.now_ns) if track is None else track
    used, looks, period_ns = [], 0, kernel.limit.period_us * 1000
    first_ns = kernel.now_ns + period_ns - (kernel.now_ns - kernel.begin_ns) % period_ns
    for mark_ns in range(first_ns, until_ns, period_ns):
        while track.due_ns + late_ns <= mark_ns:
            kernel.until(max(kernel.now_ns, track.due_ns + late_ns))
            kernel.charge()
            track = charge.after(track, Look(kernel.now_ns, kernel.run_ns, kernel.periods))
            looks += 1
        kernel.until(mark_ns)
        used.append(kernel.run_ns)
    return used, looks, track


def windows(used, limit):
    """Of every second, what it got over what the limit gives."""
    periods = SECOND // (limit.period_us * 1000)
    pairs = zip(used, used[periods:], strict=False)
    return [(b - a) / (periods * limit.quota_us * 1000) for a, b in pairs]


limits = st.builds(
    lambda period_ms, share: Bandwidth(
        max(1000, round(share * period_ms * 1000)), period_ms * 1000
    ),
    st.sampled_from((20, 25, 33, 50, 100)),
    st.floats(0.05, charge.SHARE_MAX),
)
phases = st.integers(0, 100 * MS)


@given(limits, phases, phases, st.integers(0, 100_000))
@settings(deadline=None, max_examples=40)
def test_every_second_is_what_the_limit_gives(limit, tick_ns, begin_ns, late_ns):
    """Whenever ticks and periods come, and looks a little late: within 1.5 % after 3 s at most."""
    kernel = Kernel(limit, tick_ns, begin_ns)
    _, _, track = drive(kernel, 3 * SECOND, late_ns=late_ns)

    used, looks, _ = drive(kernel, 6 * SECOND, track, late_ns)

    assert max(abs(w - 1) for w in windows(used, limit)) <= 0.015
    assert looks <= 3.3 * 1e6 / limit.period_us  # once a period, and at times again


def test_the_kernel_alone_gives_lumps():
    """The model shows what this is for: 5 ms in 100 are one or two ticks."""
    kernel = Kernel(Bandwidth(5000, 100_000), tick_ns=5 * MS // 2)
    used = []
    for mark_ns in range(0, 5 * SECOND, 100 * MS):
        kernel.until(mark_ns + 50 * MS)
        used.append(kernel.run_ns)

    found = [(b - a) / (50 * MS) for a, b in zip(used, used[10:], strict=False)]
    assert max(found) - min(found) > 0.05
    assert sum(found) / len(found) == pytest.approx(1.0, abs=0.02)


def test_nothing_is_forgiven_when_a_limit_is_written():
    """Debts are what a write gives away: charged at its quota's end the vCPU has none."""
    few, more = Bandwidth(5000, 100_000), Bandwidth(10_000, 100_000)
    kernel = Kernel(few, tick_ns=MS, begin_ns=3 * MS)
    _, _, track = drive(kernel, 2 * SECOND)
    before_ns = kernel.run_ns  # a period begins just now
    kernel.write(more)
    track = charge.limited(track, more, kernel.now_ns)

    used, _, _ = drive(kernel, kernel.now_ns + SECOND + 1, track)

    assert (used[-1] - before_ns) / (100 * MS) == pytest.approx(1.0, abs=0.02)


def test_another_period_is_found():
    """Its begin is looked for anew."""
    kernel = Kernel(Bandwidth(5000, 100_000))
    _, _, track = drive(kernel, SECOND)
    other = Bandwidth(2500, 50_000)
    kernel.write(other)
    kernel.begin_ns = kernel.now_ns + 17 * MS
    track = charge.limited(track, other, kernel.now_ns)
    _, _, track = drive(kernel, 2 * SECOND, track)

    used, looks, _ = drive(kernel, 4 * SECOND, track)

    found = windows(used, other)
    assert max(abs(w - 1) for w in found) < 0.05
    assert looks <= 45


def test_one_that_sleeps_is_seldom_looked_at():
    """It is asked now and then whether it runs again, and then all is as before."""
    limit = Bandwidth(5000, 100_000)
    kernel = Kernel(limit, naps=10 * SECOND)
    _, _, track = drive(kernel, 14 * SECOND)
    _, looks, track = drive(kernel, 20 * SECOND, track)
    _, _, track = drive(kernel, 23 * SECOND, track)
    used, _, _ = drive(kernel, 26 * SECOND, track)

    assert looks <= 40
    assert max(abs(w - 1) for w in windows(used, limit)) < 0.05


@pytest.mark.parametrize("naps_ms", [3, 7, 40, 200])
def test_one_that_sleeps_in_between_loses_nothing(naps_ms):
    """To be charged costs it nothing: it gets what it gets from the kernel alone."""
    got = []
    for charged in (True, False):
        kernel = Kernel(Bandwidth(5000, 50_000), tick_ns=MS, naps=naps_ms * MS)
        if charged:
            _, looks, _ = drive(kernel, 10 * SECOND)
            assert looks < 1500
        kernel.until(10 * SECOND)
        got.append(kernel.run_ns)

    assert got[0] == pytest.approx(got[1], rel=0.02)


def test_chosen_are_small_limits_that_keep_their_vcpus_from_running():
    """Those that did so lately, most of the time; the smallest first, no more than may be."""
    more = {("a", 0): (0.1, SECOND), ("b", 0): (0.05, SECOND), ("c", 0): (0.01, SECOND // 4)}
    first = {key: charge.seen(None, share, 0, 0) for key, (share, _) in more.items()}
    assert charge.chosen(first, 0, 9) == []

    known = {key: charge.seen(first[key], *said, SECOND) for key, said in more.items()}
    assert charge.chosen(known, SECOND, 9) == [("b", 0), ("a", 0)]
    assert charge.chosen(known, SECOND, 1) == [("b", 0)]

    later = {key: charge.seen(known[key], *said, 9 * SECOND) for key, said in more.items()}
    assert charge.chosen(later, 9 * SECOND, 9) == []


def test_a_lower_limit_leaves_less_of_the_period_under_way():
    """What was used of it counts; one that has stopped, or has less left anyway, is left alone."""
    more, less = Bandwidth(10_000, 100_000), Bandwidth(5000, 100_000)
    kernel = Kernel(more, tick_ns=MS)
    used, _, track = drive(kernel, 2 * SECOND + 1)
    begin_ns, before_ns = kernel.now_ns, used[-1]

    def rest(after_ns, wanted=less):
        kernel.until(begin_ns + after_ns)
        kernel.charge()
        return charge.rest(track, Look(kernel.now_ns, kernel.run_ns, 0), wanted)

    left = rest(2 * MS)
    assert left.quota_us + (kernel.run_ns - before_ns) / 1000 == pytest.approx(5000, abs=200)
    assert rest(7 * MS).quota_us == 1000  # the least there is
    assert rest(7 * MS + 1, wanted=Bandwidth(12_000, 100_000)) is None
    assert rest(20 * MS) is None
