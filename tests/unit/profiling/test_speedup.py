"""Estimators of speed-up: what each can tell, how sure it is, and what counts in the end."""

from dataclasses import replace

import pytest

from amp_nova.profiling import speedup as speedup_
from amp_nova.profiling.counter_windows import Behaviour
from amp_nova.profiling.speedup import Estimate, IpcModel, Miss, MissModel, Sampling
from tests.behaviours import Work, platform, seen, work_of

SLOW, FAST = 0, 1
SPEEDUPS = (1.01, 1.1, 1.5, 2.0, 2.375)


@pytest.mark.parametrize("speedup", SPEEDUPS)
def test_both_rates_give_the_speedup(speedup):
    """One that ran on both types is known, wherever it is now."""
    for order in ((SLOW, FAST), (FAST, SLOW)):
        found = Sampling().speedup(platform(), seen(work_of(speedup), *order), FAST, SLOW, 20.0)

        assert found.value == pytest.approx(speedup, rel=1e-6)
        assert found.se < 0.02 * speedup


@pytest.mark.parametrize("speedup", SPEEDUPS)
@pytest.mark.parametrize("where", [SLOW, FAST])
def test_misses_give_the_speedup_from_either_type(speedup, where):
    """With the cost of a miss known, one core type is enough, whatever the work's own IPC."""
    for core_cpi in (0.3, 0.5, 2.0):
        known = seen(work_of(speedup, core_cpi=core_cpi), where)
        found = MissModel().speedup(platform(), known, FAST, SLOW, 20.0)

        assert found.value == pytest.approx(speedup, rel=1e-6)


def test_ipc_orders_work_but_mistakes_slow_instructions_for_memory():
    """Its blind spot, as kwon2011 says: the estimate is wrong, and knows that it may be."""
    usual = [
        IpcModel().speedup(platform(), seen(work_of(s), FAST), FAST, SLOW, 20.0) for s in SPEEDUPS
    ]
    slow = IpcModel().speedup(platform(), seen(Work(2.0, 0.0), SLOW), FAST, SLOW, 20.0)

    assert [e.value for e in usual] == sorted(e.value for e in usual)
    assert slow.value < 1.3
    assert slow.value + 3 * slow.se > 2.3


def test_what_is_not_counted_gives_no_estimate():
    """Without misses, cycles or nominal Ips an estimator says nothing rather than guess."""
    nothing = Behaviour((None, None))
    known = seen(Work(), FAST)
    no_misses = Behaviour((None, replace(known.now, misses_per_cycle=None)), FAST)

    assert speedup_.speedup(platform(), nothing, FAST, SLOW, 0.0) is None
    assert Sampling().speedup(platform(), known, FAST, SLOW, 20.0) is None
    assert MissModel().speedup(platform(), no_misses, FAST, SLOW, 20.0) is None
    assert IpcModel().speedup(platform(nominal_ips=None), known, FAST, SLOW, 20.0) is None


def test_old_rates_count_less_and_then_not_at_all():
    """A rate that was taken long ago says less with time; the model takes over."""
    known = seen(work_of(1.5), SLOW, FAST)
    fresh, later = (Sampling().speedup(platform(), known, FAST, SLOW, t) for t in (20.0, 1800.0))

    assert fresh.se < later.se
    assert later.age_s > 1700.0
    assert Sampling().speedup(platform(), known, FAST, SLOW, 4000.0) is None
    assert speedup_.speedup(platform(), known, FAST, SLOW, 4000.0).source == "misses"


def test_the_most_certain_estimate_wins():
    """Sampling over misses, misses over IPC, where each is as good as it can be."""
    both, one = seen(work_of(1.5), SLOW, FAST), seen(work_of(1.5), FAST)
    no_misses = Behaviour((None, replace(one.now, misses_per_cycle=None)), FAST)

    sources = [
        speedup_.speedup(platform(), known, FAST, SLOW, 20.0).source
        for known in (both, one, no_misses)
    ]

    assert sources == ["sampling", "misses", "ipc"]


def test_an_unsure_estimate_stays_near_the_hardware():
    """Sure: the vCPU's own; unsure: the core type's; and never outside 1 to that."""
    assert speedup_.shrunk(Estimate(1.1, 0.0, "x"), 2.375) == pytest.approx(1.1)
    assert speedup_.shrunk(Estimate(1.1, 100.0, "x"), 2.375) == pytest.approx(2.375, abs=0.001)
    assert 1.1 < speedup_.shrunk(Estimate(1.1, 0.5, "x"), 2.375) < 2.375
    assert speedup_.shrunk(Estimate(3.0, 0.0, "x"), 2.375) == 2.375
    assert speedup_.shrunk(Estimate(0.5, 0.0, "x"), 2.375) == 1.0
    assert speedup_.shrunk(Estimate(0.3, 0.0, "x"), 0.5) == 0.5
    assert speedup_.shrunk(Estimate(1.2, 0.0, "x"), 0.5) == 1.0


def test_the_reference_type_keeps_its_coefficient():
    """Own coefficients are over the base type, whose own is the hardware's."""
    known = seen(work_of(1.5), SLOW, FAST, windows=10)

    assert speedup_.own_coefficient(platform(), known, SLOW, SLOW, 60.0) is None
    own, _ = speedup_.own_coefficient(platform(), known, FAST, SLOW, 60.0)
    assert own == pytest.approx(1.5, rel=0.01)


def test_noise_changes_no_coefficient():
    """Less than 1 %, or than twice the noise, is no reason to write a quota."""
    assert speedup_.step(2.0, 2.015, 0.0) == 2.0
    assert speedup_.step(2.0, 2.03, 0.0) == 2.03
    assert speedup_.step(2.0, 2.03, 0.02) == 2.0


def test_who_ran_on_both_types_teaches_the_cost_of_a_miss():
    """From three workloads of one memory the platform is learnt; another one is then known."""
    wrong = platform(miss_s=200e-9, se_ratio=0.5)
    pupils = [seen(work_of(s), SLOW, FAST) for s in (1.2, 1.4, 1.8)]
    lessons = [speedup_.lesson(wrong, p, FAST, SLOW) for p in pupils]
    learnt = speedup_.taught(wrong, lessons)

    assert [m.cycles for m in learnt.misses] == [pytest.approx(80.0), pytest.approx(190.0)]
    assert learnt.misses[FAST].se_ratio < 0.1
    found = speedup_.speedup(learnt, seen(work_of(1.1), FAST), FAST, SLOW, 20.0)
    assert found.value == pytest.approx(1.1, rel=1e-6)


def test_workloads_that_disagree_teach_doubt():
    """Where misses cost one twice what they cost another, the model says how unsure that is."""
    prior = platform(se_ratio=0.5)
    lessons = [
        speedup_.lesson(prior, seen(work_of(1.3, miss_s=s), SLOW, FAST), FAST, SLOW)
        for s in (40e-9, 80e-9, 160e-9)
    ]

    assert speedup_.taught(prior, lessons).misses[FAST].se_ratio > 0.3


def test_work_without_memory_time_teaches_nothing():
    """Nor does a behaviour that was seen on one type only."""
    assert speedup_.lesson(platform(), seen(work_of(2.375), SLOW, FAST), FAST, SLOW) is None
    assert speedup_.lesson(platform(), seen(work_of(1.2), FAST), FAST, SLOW) is None


def test_drift_is_judged_by_those_who_compute():
    """Work that waits for memory says nothing about the hardware; the median of the rest does."""
    host = platform(ratio=2.375)
    slower = [seen(work_of(s, ratio=2.0), SLOW, FAST) for s in (2.0, 1.999, 1.998, 1.1)]

    assert speedup_.drift(host, slower, FAST, 30.0) == pytest.approx(2.0 / 2.375, rel=1e-3)
    assert speedup_.drift(host, slower[3:], FAST, 30.0) is None
    assert speedup_.drift(host, [seen(Work(), FAST)], FAST, 30.0) is None
    assert speedup_.drift(host, slower, SLOW, 30.0) is None


def test_a_platform_begins_with_what_the_operator_knows():
    """In cycles of the slowest type; a faster one waits as long, which is more cycles."""
    begun = speedup_.untaught(platform().core_types, 100.0, 0.05)

    assert begun.misses == (Miss(100.0, 0.05), Miss(237.5, 0.05))
