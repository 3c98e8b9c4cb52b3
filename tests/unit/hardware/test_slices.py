# SPDX-License-Identifier: Apache-2.0
"""Which slices say how fast a core is."""

import pytest

from amp_nova.hardware import slices
from amp_nova.hardware.slices import Run, Slice

RUN = Run("fast", "integer", smt_busy=False)
MS = 1_000_000


def found(rates, **counted):
    return slices.fastest(2, RUN, 5, [Slice(rate, 0.02, 0.02, **counted) for rate in rates])


@pytest.mark.parametrize(("alone", "speed"), [(10, pytest.approx(1000)), (9, None)])
def test_preempted_operations_do_not_count(alone, speed):
    """Their caches are cold, and CPU time may be that of an interrupt. Nine others say little."""
    assert slices.rate([(MS, MS)] * alone + [(4 * MS, 2 * MS)] * 20) == speed


def test_the_speed_is_one_that_a_tenth_of_the_slices_exceeds():
    """Slices that something slowed down do not matter; nor does a single lucky one."""
    sample = found([1000.0] * 15 + [300.0] * 82 + [1500.0] * 3)

    assert (sample.ops_per_cpu_s, sample.pcpu, sample.round) == (1000.0, 5, 2)


def test_too_few_slices_are_no_sample():
    """Four slices ran undisturbed."""
    assert found([1000.0] * 4 + [None] * 20) is None


def test_instructions_and_cycles_are_those_of_an_operation():
    """Nominal Ips are at the speed that counts, also if the count is of slower slices."""
    sample = found([1000.0] * 9 + [500.0], instructions_per_op=3e6, cycles_per_op=2e6)

    assert (sample.ips, sample.clock_hz) == pytest.approx((3e9, 2e9))
