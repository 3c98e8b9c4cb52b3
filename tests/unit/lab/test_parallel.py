# SPDX-License-Identifier: Apache-2.0
"""What it gains to place a parallel program as a whole, which is stated or recognised."""

import pytest

from amp_nova_lab.run import run
from tests.unit.lab.builders import guest, scenario

GAIN = 1.8
MEETS_S = 0.05


def progress(policy, vcpus, others, duration_s=100.0, **specs):
    """Progress per vCPU of the parallel instance, and the mean of the others'."""
    guests = [guest("parallel", vcpus, GAIN, barrier=MEETS_S, **specs)]
    guests += [guest(f"g{i}", speed=GAIN) for i in range(others)]
    host = {"fast": 2, "slow": 6, "coefficient": GAIN}
    found = dict(run(scenario(*guests, duration_s=duration_s, policy=policy, **host)).vms)
    own = found.pop("parallel").progress_refcores
    return own, sum(g.progress_refcores for g in found.values()) / others


@pytest.mark.parametrize(
    ("policy", "vcpus", "others", "not_stated", "stated"),
    [("acfs", 4, 4, 1.33, 1.40), ("acfs", 6, 2, 1.50, 1.80), ("rr", 4, 3, 1.36, 1.53)],
)
def test_others_gain_and_the_program_loses_nothing(policy, vcpus, others, not_stated, stated):
    before = progress(policy, vcpus, others, parallel="false")
    after = progress(policy, vcpus, others, parallel="true")
    recognised = progress(policy, vcpus, others)

    assert before == pytest.approx((1.0, not_stated), abs=0.015)
    assert after == pytest.approx((1.0, stated), abs=0.015)
    assert recognised == pytest.approx(after, rel=0.03)


def test_a_program_that_fits_has_fast_cores_for_all_its_vcpus():
    """One by one they are on fast cores for as long, but hardly ever at the same time."""
    before = progress("acfs", 2, 6, 300.0, parallel="false")
    after = progress("acfs", 2, 6, 300.0, parallel="true")

    assert before == pytest.approx((1.06, 1.19), abs=0.015)
    assert after == pytest.approx((1.19, 1.20), abs=0.015)
    assert progress("acfs", 2, 6, 300.0) == pytest.approx(after, rel=0.03)


@pytest.mark.parametrize("utilization", [1.0, 0.6])
def test_vcpus_that_do_not_wait_for_each_other_take_turns(utilization):
    """What seems to be a parallel program would stay where it is."""
    guests = guest("several", 2, GAIN, utilization), guest("one", speed=GAIN)

    found = run(scenario(*guests, duration_s=100.0, policy="rr", slow=2, coefficient=GAIN)).vms

    assert found["several"].fast_share == pytest.approx(0.25, abs=0.02)
