# SPDX-License-Identifier: Apache-2.0
"""Sampling windows and smoothing: the rule of kwon2011, phases, and discarded windows."""

import pytest
from msgspec import structs

from amp_nova.model.observation import Counts
from amp_nova.profiling.counter_windows import CounterProfile, smooth, window, with_window
from tests.support.counter_profiles import Work, seen
from tests.support.hosts import reading

SLOW, FAST = 0, 1


def smoothed(*measured):
    """The smoothed value after each interval."""
    values, now = [], None
    for value in measured:
        now = smooth(now, value)
        values.append(now.value)
    return values


@pytest.mark.parametrize(
    ("measured", "counts"),
    [
        ((1.0, 1.1, 1.2, 1.3), (1.0, 1.1, 1.2, 1.3)),  # within 15 % of the current one
        ((1.0, 1.15), (1.0, 1.15)),
        ((1.0, 1.151), (1.0, 1.0)),
        ((1.0, 2.0, 2.0, 2.0), (1.0, 1.0, 2.0, 2.0)),  # lasts two intervals
        ((1.0, 2.0, 1.0, 2.0, 1.0), (1.0,) * 5),  # never lasts
        ((1.0, 2.0, 4.0, 4.0), (1.0, 1.0, 1.0, 4.0)),  # two different changes
        ((1.0, 2.0, 1.01, 2.0), (1.0, 1.0, 1.01, 1.01)),  # not consecutive
        ((1.0, 0.5, 0.55), (1.0, 1.0, 0.55)),
        ((0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.0, 1.0)),
    ],
)
def test_a_large_change_counts_once_it_lasts_two_intervals(measured, counts):
    """kwon2011, section 3.1: threshold 15 %, two consecutive intervals."""
    assert smoothed(*measured) == list(counts)


def test_a_window_is_the_difference_of_two_readings():
    """Rates are per second of CPU time, utilization per second of wall time."""
    first = structs.replace(reading(run_s=1.0), counts=Counts(1_000, 5_000, 10))
    last = structs.replace(reading(run_s=2.0), counts=Counts(2_001_000, 1_005_000, 2_010))

    found = window(first, last, 2_000_000_000)

    assert (found.ips, found.ipc, found.utilization_ratio) == (2e6, 2.0, 0.5)
    assert found.misses_per_cycle == 0.002


@pytest.mark.parametrize(
    "counts",
    [None, Counts(999), Counts(1_000), Counts(2_000, 4_999), Counts(2_000, 6_000, 9)],
)
def test_counters_that_went_backwards_or_stood_still_give_no_window(counts):
    """Nor does a vCPU without counters, or one that slept."""
    first = structs.replace(reading(run_s=1.0), counts=Counts(1_000, 5_000, 10))
    last = structs.replace(reading(run_s=2.0), counts=counts)

    assert window(first, last, 2_000_000_000) is None
    assert (
        window(first, structs.replace(first, counts=Counts(9_000, 9_000, 99)), 2_000_000_000)
        is None
    )


def test_the_efficiency_score_is_ipc_times_utilization():
    """kwon2011 section 2.1. Without cycles there is no score."""
    half = with_window(
        CounterProfile((None, None)), SLOW, Work(0.5, 0.0).window(SLOW, run_s=1.0), 2.0
    )
    uncounted = with_window(half, SLOW, structs.replace(Work().window(SLOW), cycles=None), 4.5)

    assert half.score == pytest.approx(2.0 * 0.5)
    assert uncounted.score is None


def test_a_new_phase_discards_the_rates_of_the_old_one():
    """After a lasting change of IPC, earlier rates are gone on both core types."""
    both = seen(Work(), SLOW, FAST)
    once = with_window(both, FAST, Work(core_cpi=3.0).window(FAST), 30.0)
    twice = with_window(once, FAST, Work(core_cpi=3.0).window(FAST), 32.5)

    assert once.types[SLOW] is not None
    assert twice.types[SLOW] is None
    assert twice.types[FAST].ips.windows == 1
    assert twice.now.ipc == pytest.approx(1 / Work(core_cpi=3.0).cpi(FAST))


def test_slow_drift_ends_a_phase_too():
    """Steps within 15 % are followed at once, but together they start a new phase."""
    known = seen(Work(misses=0.0), SLOW, FAST)
    for step in range(1, 4):
        known = with_window(known, FAST, Work(0.5 * 1.08**step, 0.0).window(FAST), 20.0 + step)

    assert known.types[SLOW] is None


def test_the_standard_error_follows_the_scatter_of_windows():
    """It falls while windows agree and stays high while they do not."""
    steady = seen(Work(), SLOW, windows=10).now.ips
    known = CounterProfile((None, None))
    for turn in range(10):
        known = with_window(
            known, SLOW, Work().window(SLOW, off=1.1 if turn % 2 else 0.97), turn * 2.5
        )

    assert steady.value == pytest.approx(Work().ips(SLOW))
    assert steady.se_ratio < 0.004
    assert 0.01 < known.now.ips.se_ratio < 0.04
