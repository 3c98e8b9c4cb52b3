# SPDX-License-Identifier: Apache-2.0
"""What a calibration derives from its measurements."""

import statistics

import pytest

from amp_nova.exceptions import CalibrationInvalid
from amp_nova.hardware import calibration
from amp_nova.hardware.calibration import Reference
from amp_nova.host.calibration.kernels import FLOAT, INTEGER, MEMORY
from tests.support.calibrations import sample
from tests.support.counter_profiles import work_of

PCPUS = {"slow": (1,), "fast": (0,)}


def rounds(core_type, values, **more):
    return [sample(core_type, ops, number, **more) for number, ops in enumerate(values)]


def summary(samples, kernels=(INTEGER,), reference="slow"):
    results = calibration.summarise(samples, PCPUS, kernels, Reference(reference, tuple(samples)))
    return {r.name: r for r in results}


@pytest.mark.parametrize(
    ("values", "low", "high", "confidence"),
    [
        ([5], 5, 5, 0.0),
        ([1, 2, 9], 1, 9, 0.75),
        ([1, 2, 3, 4, 5, 6], 1, 6, 0.96875),
        # n = 10: the textbook's second and ninth, 97.9 %
        (list(range(1, 11)), 2, 9, 1 - 2 * 11 / 1024),
        (list(range(1, 21)), 6, 15, 0.9586),
    ],
)
def test_the_interval_is_that_of_the_order_statistics(values, low, high, confidence):
    """The interval is the narrowest of 95 %; few values give a lower confidence."""
    found = calibration.estimate(values)

    assert (found.low, found.value, found.high) == (low, statistics.median(values), high)
    assert found.confidence_ratio == pytest.approx(confidence, abs=1e-4)


def test_only_cpu_bound_kernels_make_the_coefficient():
    """The coefficient is the geometric mean of CPU-bound kernels; each kernel has its ratio."""
    samples = []
    for kernel, ratio in (("integer", 2.0), ("float", 8.0), ("memory", 1.1)):
        samples += rounds("slow", [100], kernel=kernel)
        samples += rounds("fast", [100 * ratio], kernel=kernel)
    found = summary(samples, (INTEGER, FLOAT, MEMORY))["fast"]

    assert found.coefficient.value == pytest.approx(4)
    assert [k.ratio.value for k in found.kernels] == pytest.approx([2, 8, 1.1])


def test_busy_siblings_give_a_factor_and_stay_out_of_the_coefficient():
    """The SMT factor is speed with busy siblings over speed with idle ones."""
    samples = rounds("slow", [1000, 1000]) + rounds("fast", [2000, 2000])
    samples += rounds("fast", [1200, 1200], smt_busy=True)
    found = summary(samples)

    assert found["fast"].smt_busy_factor.value == pytest.approx(0.6)
    assert found["fast"].coefficient.value == pytest.approx(2)
    assert found["slow"].smt_busy_factor is None


def elsewhere(values):
    """The reference core of another host, with these rates by round."""
    samples = tuple(rounds("old", values))
    (found,) = calibration.summarise(samples, {"old": (0,)}, (INTEGER,), Reference("old", samples))
    return Reference("old", elsewhere=found)


def test_a_reference_elsewhere_has_the_uncertainty_of_both_machines():
    """Rates of two machines are divided by their medians, with the widest interval."""
    mine = rounds("slow", [220, 220, 231]) + rounds("fast", [440, 440, 440])
    results = calibration.summarise(
        mine, {"fast": (0,), "slow": (1,)}, (INTEGER,), elsewhere([100, 110, 120])
    )

    assert [r.name for r in results] == ["slow", "fast"]
    assert results[0].coefficient.value == pytest.approx(2)
    assert results[0].coefficient.low == pytest.approx(220 / 120)
    assert results[0].coefficient.high == pytest.approx(231 / 100)
    assert results[0].coefficient.confidence_ratio == pytest.approx(0.5)
    assert results[1].coefficient.value == pytest.approx(4)


def test_without_slices_there_is_no_ratio_to_a_reference_elsewhere():
    """The message says where, and what to do."""
    with pytest.raises(CalibrationInvalid, match=r"integer.*'slow'.*preempted; .*--seconds"):
        calibration.summarise([], PCPUS, (INTEGER,), elsewhere([1]))


@pytest.mark.parametrize(
    ("fast", "slowest"),
    [([2000, 2000], "slow"), ([500, 600], "fast"), ([999, 1001], "slow"), ([1000, 1000], "slow")],
)
def test_the_preferred_reference_stays_unless_another_type_is_slower(fast, slowest):
    """Two types that are equal within the noise keep their order."""
    samples = rounds("slow", [1000, 1000]) + rounds("fast", fast)

    assert calibration.slowest(samples, ["slow", "fast"], ["integer"]) == slowest


def of_work(position, work, scale=1.0):
    """A core type's rounds of computing, and of work with a known cost of a miss."""
    name, hz = ("slow", "fast")[position], work.clocks_hz[position]
    ips = work.ips(position)
    counted = {"clock_hz": hz, "misses_per_cpu_s": scale * ips * work.misses}
    if not scale:
        counted["misses_per_cpu_s"] = None
    computing = rounds(name, [hz * 1e-6] * 3)
    return computing + rounds(name, [ips * 1e-6] * 3, kernel="memory", **counted)


@pytest.mark.parametrize("ratio", [1.3, 2.0, 4.0])
@pytest.mark.parametrize("speedup", [0.2, 0.7])
def test_the_memory_kernel_shows_what_a_miss_costs(ratio, speedup):
    """It computes, then waits 80 ns for each miss: the cycles of that at the clock of each type."""
    work = work_of(1.0 + speedup * (ratio - 1.0), ratio)
    found = summary(of_work(0, work) + of_work(1, work), (INTEGER, MEMORY))

    assert found["slow"].miss_cycles.value == pytest.approx(80.0, rel=1e-6)
    assert found["fast"].miss_cycles.value == pytest.approx(80.0 * ratio, rel=1e-6)


def test_what_hardly_waits_or_is_not_counted_shows_no_cost():
    """A kernel that gains as much as the others, and one whose misses are few or not counted."""
    computes, waits = work_of(1.99, 2.0), work_of(1.3, 2.0)
    for work, scale in ((computes, 1.0), (waits, 0.0)):
        found = summary(of_work(0, work, scale) + of_work(1, work, scale), (INTEGER, MEMORY))
        assert found["slow"].miss_cycles is found["fast"].miss_cycles is None
