# SPDX-License-Identifier: Apache-2.0
"""Speedup estimators: what each can estimate, with which error, and which one is used."""

import pytest
from msgspec import structs

from amp_nova.profiling import speedup as speedup_
from amp_nova.profiling.counter_windows import CounterProfile, with_window
from amp_nova.profiling.speedup import from_ipc, from_misses, from_sampling
from tests.support.counter_profiles import Work, platform, seen, work_of

SLOW, FAST = 0, 1
SPEEDUPS = (1.01, 1.1, 1.5, 2.0, 2.375)


@pytest.mark.parametrize("speedup", SPEEDUPS)
@pytest.mark.parametrize("where", [SLOW, FAST])
def test_misses_give_the_speedup_from_either_type(speedup, where):
    """If the cost of a miss is known, one core type is enough, whatever the IPC of the work."""
    for core_cpi in (0.3, 0.5, 2.0):
        known = seen(work_of(speedup, core_cpi=core_cpi), where)
        found = from_misses(platform(), known, FAST, SLOW, 20.0)

        assert found.value == pytest.approx(speedup, rel=1e-6)


def test_ipc_ranks_work_but_mistakes_slow_instructions_for_memory():
    """Its blind spot, as kwon2011 says: the estimate is wrong, but its error bar says so."""
    usual = [from_ipc(platform(), seen(work_of(s), FAST), FAST, SLOW, 20.0) for s in SPEEDUPS]
    slow = from_ipc(platform(), seen(Work(2.0, 0.0), SLOW), FAST, SLOW, 20.0)

    assert [e.value for e in usual] == sorted(e.value for e in usual)
    assert slow.value < 1.3
    assert slow.value + 3 * slow.se > 2.3


def test_what_is_not_counted_gives_no_estimate():
    """Without misses, cycles or nominal Ips an estimator returns nothing rather than a guess."""
    nothing = CounterProfile((None, None))
    known = seen(Work(), FAST)
    no_misses = CounterProfile((None, structs.replace(known.now, misses_per_cycle=None)), FAST)

    assert speedup_.speedup(platform(), nothing, FAST, SLOW, 0.0) is None
    assert from_sampling(platform(), known, FAST, SLOW, 20.0) is None
    assert from_misses(platform(), no_misses, FAST, SLOW, 20.0) is None
    assert from_ipc(platform(nominal_ips=None), known, FAST, SLOW, 20.0) is None


def test_old_rates_count_less_and_then_not_at_all():
    """The error of a rate grows with its age, until the model takes over."""
    known = seen(work_of(1.5), SLOW, FAST)
    fresh, later = (from_sampling(platform(), known, FAST, SLOW, t) for t in (20.0, 1800.0))

    assert fresh.se < later.se
    assert from_sampling(platform(), known, FAST, SLOW, 4000.0) is None
    assert speedup_.speedup(platform(), known, FAST, SLOW, 4000.0).source == "misses"


def test_own_coefficients_are_relative_to_the_base_type():
    """A vCPU that is 1.5 times as fast on fast cores has 1.5 times the slow cores' coefficient."""
    known = seen(work_of(1.5), SLOW, FAST, windows=10)
    found = speedup_.speedup(platform(), known, FAST, SLOW, 60.0)

    assert speedup_.own_coefficient(found, 2.375, 1.0) == pytest.approx(1.5, rel=0.01)
    assert speedup_.own_coefficient(found, 4.75, 2.0) == pytest.approx(3.0, rel=0.01)


def test_noise_does_not_change_a_coefficient():
    """A change below 1 %, or below twice the noise, does not write a quota."""
    assert speedup_.next_coefficient(2.0, 2.015, 0.0) == 2.0
    assert speedup_.next_coefficient(2.0, 2.03, 0.0) == 2.03
    assert speedup_.next_coefficient(2.0, 2.03, 0.02) == 2.0


def test_vcpus_that_ran_on_both_types_give_the_cost_of_a_miss():
    """Three workloads give the miss costs of a host, from which a fourth is then estimated."""
    wrong = platform(miss_s=200e-9, se_ratio=0.5)
    profiles = [seen(work_of(s), SLOW, FAST) for s in (1.2, 1.4, 1.8)]
    samples = [speedup_.miss_sample(wrong, p) for p in profiles]
    measured = speedup_.platform_of(wrong.core_types, samples)

    assert [m.cycles for m in measured.misses] == [pytest.approx(80.0), pytest.approx(190.0)]
    assert measured.misses[FAST].se_ratio < 0.1
    found = speedup_.speedup(measured, seen(work_of(1.1), FAST), FAST, SLOW, 20.0)
    assert found.value == pytest.approx(1.1, rel=1e-6)


def test_workloads_that_disagree_increase_the_error():
    """If a miss costs one workload twice as much as another, the error of the model shows it."""
    prior = platform(se_ratio=0.5)
    samples = [
        speedup_.miss_sample(prior, seen(work_of(1.3, miss_s=s), SLOW, FAST))
        for s in (40e-9, 80e-9, 160e-9)
    ]

    assert speedup_.platform_of(prior.core_types, samples).misses[FAST].se_ratio > 0.3


def test_work_without_memory_time_gives_no_miss_cost():
    """Nor does a vCPU that ran on one core type only."""
    assert speedup_.miss_sample(platform(), seen(work_of(2.375), SLOW, FAST)) is None
    assert speedup_.miss_sample(platform(), seen(work_of(1.2), FAST)) is None


def test_drift_is_measured_on_vcpus_that_compute():
    """The median counts over vCPUs that do not wait for memory."""
    host = platform(ratio=2.375)
    slower = [seen(work_of(s, ratio=2.0), SLOW, FAST) for s in (2.0, 1.999, 1.998, 1.1)]

    assert speedup_.drift(host, slower, FAST, 30.0) == pytest.approx(2.0 / 2.375, rel=1e-3)
    assert speedup_.drift(host, slower[3:], FAST, 30.0) is None
    assert speedup_.drift(host, [seen(Work(), FAST)], FAST, 30.0) is None
    assert speedup_.drift(host, slower, SLOW, 30.0) is None


@pytest.mark.parametrize("other", [1.05, 1.6, 2.2])
def test_rates_of_different_work_are_no_speedup(other):
    """It changed its phase and its core type at once: only what it does now counts."""
    before, after = work_of(1.3), work_of(other)
    known = seen(before, SLOW)
    for at_s in (12.0, 14.5):
        known = with_window(known, FAST, after.window(FAST), at_s)

    assert from_sampling(platform(), known, FAST, SLOW, 15.0) is None
    assert speedup_.miss_sample(platform(), known) is None
    found = speedup_.speedup(platform(), known, FAST, SLOW, 15.0)
    assert found.value == pytest.approx(other, rel=0.05)


def test_misses_that_hardly_matter_do_not_tell_work_apart():
    """Few misses vary by chance."""
    known = seen(work_of(2.36), SLOW)
    known = with_window(known, FAST, work_of(2.36).window(FAST, off_misses=5.0), 12.0)

    assert from_sampling(platform(), known, FAST, SLOW, 15.0) is not None
