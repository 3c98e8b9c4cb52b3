"""Slowdown of instances relative to running alone on the same host."""

import pytest

from amp_nova.accounting.slowdown import Recent, Shared, slowdown
from amp_nova.model.topology import CoreType

TYPES = CoreType("slow", 1.0), CoreType("fast", 2.5)


def vcpu(slow_s, fast_s, speedup=2.1, demand_s=None):
    return Shared(speedup, Recent((slow_s, fast_s), demand_s or slow_s + fast_s))


def test_of_one_vcpu_it_is_relative_to_a_fast_core():
    """Half of the time on each type: 2.1 alone over (1 + 2.1) / 2."""
    assert slowdown([vcpu(30.0, 30.0)], TYPES, (10, 2)) == pytest.approx(2.1 / 1.55)


def test_of_nine_vcpus_it_is_relative_to_turns_on_two_fast_cores():
    """saez2015: alone they would run at 1 + 1.1 x 2 / 9, here on slow cores at 1."""
    assert slowdown([vcpu(60.0, 0.0)] * 9, TYPES, (10, 2)) == pytest.approx(1.0 + 1.1 * 2 / 9)
    assert slowdown([vcpu(60.0, 0.0)] * 9, TYPES, (10, 0)) == pytest.approx(1.0)


def test_vcpus_that_hardly_run_take_no_turns():
    """An instance in a serial section would have a fast core for its one busy vCPU."""
    idle = vcpu(0.01, 0.0)

    assert slowdown([vcpu(60.0, 0.0), *[idle] * 8], TYPES, (10, 1)) == pytest.approx(2.1, rel=0.01)


def test_waiting_is_a_slowdown():
    """Demand for 60 s and 20 s of running on the fast core."""
    assert slowdown([vcpu(0.0, 20.0, demand_s=60.0)], TYPES, (1, 1)) == pytest.approx(3.0)


def test_without_a_speedup_it_is_unknown():
    """Nothing is assumed."""
    assert slowdown([vcpu(60.0, 0.0), vcpu(1.0, 0.0, speedup=None)], TYPES, (1, 1)) is None
