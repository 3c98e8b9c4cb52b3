"""Predictability: equal times on all core types, and bounds on the harm of estimates."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amp_nova.profiling import speedup as speedup_
from amp_nova.profiling.counter_windows import CounterProfile, smooth, with_window
from amp_nova.profiling.speedup import Estimate
from tests.counter_profiles import Work, platform
from tests.predictability import SPEEDUPS, after_both, never_moved, spread

SLOW, FAST = 0, 1
ratios = st.floats(1.05, 6.0)


@pytest.mark.parametrize("speedup", SPEEDUPS)
def test_once_it_ran_on_both_types_work_takes_the_same_time_everywhere(speedup):
    """Kept on fast cores, kept on slow ones, moved between them: within 2 %."""
    assert spread(after_both(speedup)) <= 0.02


@pytest.mark.parametrize("speedup", SPEEDUPS)
def test_counters_alone_come_close(speedup):
    """Never moved, on a host whose miss costs were measured on other vCPUs: within 5 %."""
    assert spread([never_moved(speedup, on) for on in ("fast", "slow")]) <= 0.05


@given(
    st.floats(-1.0, 10.0),
    st.floats(0.0, 1e6),
    st.floats(0.1, 10.0),
)
def test_own_coefficients_are_bounded(value, se, coefficient):
    """Between 1 and the hardware's, whatever the estimate; and between the estimate and that."""
    found = speedup_.shrink(Estimate(value, se, "x"), coefficient)
    low, high = sorted((1.0, coefficient))
    nearer = min(high, max(low, value))

    assert low <= found <= high
    assert min(nearer, coefficient) - 1e-9 <= found <= max(nearer, coefficient) + 1e-9


def profiles(draw, work, ratio):
    """A history of windows on both types, in any order, of work that scatters."""
    known = CounterProfile((None, None))
    steps = draw(
        st.lists(st.tuples(st.sampled_from([SLOW, FAST]), st.floats(0.97, 1.03)), max_size=12)
    )
    for number, (position, off) in enumerate(steps):
        known = with_window(known, position, work.window(position, off=off), 2.5 * number)
    return known


@st.composite
def cases(draw):
    """Work with any share of memory time on a host of two types, and what was seen of it."""
    ratio = draw(ratios)
    work = Work(draw(st.floats(0.2, 3.0)), draw(st.floats(0.0, 0.05)), 80e-9, (1e9, ratio * 1e9))
    return ratio, work, profiles(draw, work, ratio)


@given(cases())
def test_an_estimate_is_a_number(case):
    """Never NaN nor infinite nor negative, and the error no less than none."""
    ratio, _, known = case
    for estimator in speedup_.ESTIMATORS:
        found = estimator(platform(ratio), known, FAST, SLOW, 60.0)
        if found is not None:
            assert math.isfinite(found.value)
            assert found.value > 0
            assert math.isfinite(found.se)
            assert found.se >= 0


@given(cases())
def test_noise_makes_it_little_worse_than_the_hardware(case):
    """With windows that are 3 % off, the error is at most the fixed coefficient's, plus 6 %."""
    ratio, work, known = case
    found = speedup_.speedup(platform(ratio), known, FAST, SLOW, 60.0)
    assume(found is not None)
    own = speedup_.own_coefficient(found, ratio, 1.0)

    wrong, fixed = (abs(c / work.speedup - 1.0) for c in (own, ratio))

    assert wrong <= fixed + 0.06


@given(cases())
def test_over_and_under_are_the_two_ends_of_one_ratio(case):
    """Fast over slow is one over slow over fast."""
    ratio, _, known = case
    for estimator in speedup_.ESTIMATORS:
        there = estimator(platform(ratio), known, FAST, SLOW, 60.0)
        back = estimator(platform(ratio), known, SLOW, FAST, 60.0)
        assert (there is None) == (back is None)
        if there is not None:
            assert there.value * back.value == pytest.approx(1.0)


@given(cases(), st.permutations([0, 1, 2]))
def test_the_order_of_estimators_does_not_matter(case, order):
    """The estimate with the least standard error wins, whatever its position."""
    ratio, _, known = case
    made = [speedup_.ESTIMATORS[i](platform(ratio), known, FAST, SLOW, 60.0) for i in order]
    best = min((e for e in made if e is not None), key=lambda e: e.se, default=None)

    assert speedup_.speedup(platform(ratio), known, FAST, SLOW, 60.0) == best


@given(st.lists(st.floats(1e-3, 1e3), min_size=1))
def test_smoothing_shows_measured_values_only_and_follows_what_holds(measured):
    """What counts was measured at some time; two equal ones in a row always count."""
    now = None
    for number, value in enumerate(measured):
        now = smooth(now, value)
        assert now.value in measured[: number + 1]
    assert smooth(smooth(now, 7.0), 7.0).value == 7.0
