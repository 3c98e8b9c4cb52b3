# SPDX-License-Identifier: Apache-2.0
"""For how long enforcement would throttle: the model against CFS bandwidth, period by period."""

import pytest

from amp_nova.accounting.delivery import Account, Conditions, add_interval
from amp_nova.accounting.would_throttle import WouldLimit, throttled_s
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.observation import Usage
from amp_nova.model.topology import CoreType

FAST = CoreType("fast", 2.0)


def cfs_throttled_ratio(burst_s, sleep_s, quota_s, period_s, lasts_s=60.0):
    """The share of time for which the kernel throttles a thread that works, sleeps, works again.

    As in the kernel's sched-bwc.rst: a thread that has used up the quota waits for the next period,
    where it gets a new one; what it did not use is lost.
    """
    now_s = throttled = 0.0
    left_s, sleeps_s, quota_left_s, refill_s = burst_s, 0.0, quota_s, period_s
    while now_s < lasts_s:
        if sleeps_s > 0.0:
            step_s = min(sleeps_s, refill_s - now_s)
            sleeps_s -= step_s
        elif quota_left_s > 1e-9:
            step_s = min(left_s, quota_left_s, refill_s - now_s)
            left_s, quota_left_s = left_s - step_s, quota_left_s - step_s
            if left_s <= 1e-9:
                left_s, sleeps_s = burst_s, sleep_s
        else:
            step_s = refill_s - now_s
            throttled += step_s
        now_s += step_s
        if now_s >= refill_s - 1e-9:
            now_s, quota_left_s, refill_s = refill_s, quota_s, refill_s + period_s
    return throttled / now_s


def predicted(wanted, limit):
    return throttled_s(Usage(1.0, wanted, 0.0, 0.0), limit)


@pytest.mark.parametrize("limit", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("wanted", [0.2, 0.5, 0.8, 0.95])
def test_short_bursts_are_throttled_for_the_least_and_long_ones_for_the_most(wanted, limit):
    """A tenth of the quota, and ten seconds at a time: within 5 % of the time.

    What would be understated if only ``u - q`` counted is what customers notice first: long bursts
    are throttled even if they want less than the limit.
    """
    period_s, sleeps = 0.05, 1.0 / wanted - 1.0
    burst_s = limit * period_s / 10.0
    short = cfs_throttled_ratio(burst_s, burst_s * sleeps, limit * period_s, period_s)
    long = cfs_throttled_ratio(10.0, 10.0 * sleeps, limit * period_s, period_s, lasts_s=2000.0)

    assert predicted(wanted, limit) == pytest.approx((short, long), abs=0.05)
    assert long > max(0.0, wanted - limit)


@pytest.mark.parametrize("burst_s", [0.001, 0.005, 0.02, 0.05, 0.2, 1.0])
@pytest.mark.parametrize("wanted", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("limit", [0.2, 0.5, 0.8])
def test_the_truth_is_between_least_and_most(burst_s, wanted, limit):
    """For bursts of any length, but for a hundredth of the time."""
    sleep_s = burst_s * (1.0 / wanted - 1.0)
    real = cfs_throttled_ratio(burst_s, sleep_s, limit * 0.02, 0.02, lasts_s=120.0)
    least, most = predicted(wanted, limit)

    assert least - 0.01 <= real <= most + 0.01


def test_demand_counts_also_while_others_have_the_pcpu():
    """It wanted to run all the time, and got half of it."""
    assert throttled_s(Usage(1.0, 0.5, 0.5, 0.0), 0.25) == (0.75, 0.75)


def test_what_one_that_naps_waited_for_others_counts_for_the_most_only():
    """It ran for half of the time, wanted to for 0.7, and would have napped 0.3 in any case."""
    least, most = throttled_s(Usage(1.0, 0.5, 0.2, 0.0), 0.25)
    assert least == pytest.approx(1 - 0.25 / 0.5)
    assert most == pytest.approx(0.7 * 0.75 / (0.7 + 0.25 * 0.3))


def test_demand_on_another_core_type_is_converted_unless_it_is_endless():
    """0.3 of a core twice as fast is 0.6 of the slow one; a busy loop takes all of any core."""
    assert throttled_s(Usage(1.0, 0.3, 0.0, 0.0), 0.3, 2.0)[0] == pytest.approx(0.5)
    assert throttled_s(Usage(1.0, 1.0, 0.0, 0.0), 0.3, 0.5)[0] == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("booking", "would", "beyond_ref_s", "throttled_s", "got"),
    [
        # It uses 2 reference cores for a second and books 0.5: 1.5 are beyond, 0.5 would be left.
        ({"refcores": 0.5}, WouldLimit(0.25, 2.0), 1.5, 0.75, 0.5),
        # In the unit of the booking: 1 of 4 GIPS.
        ({"ips": 1e9}, WouldLimit(0.25, 2.0), 1.5, 0.75, 1e9),
        # What it uses beyond an enforced booking is a matter of accuracy.
        ({"refcores": 0.5}, None, 0.0, 0.0, 2.0),
    ],
    ids=["reference cores", "instructions", "enforced"],
)
def test_time_throttled_of_a_whole_second(booking, would, beyond_ref_s, throttled_s, got):
    """On a core that is twice as fast as the reference core."""
    ran = Conditions(0, 1, 2.0, VcpuBooking(0, **booking), core_type=FAST, would=would)
    used = Usage(1.0, 1.0, 0.0, 0.0, instructions=4e9)
    found = add_interval(Account(), used, ran, 3.0).delivery

    assert found.beyond_ref_s == pytest.approx(beyond_ref_s)
    assert (found.throttled_least_s, found.throttled_most_s) == pytest.approx((throttled_s,) * 2)
    assert found.got == pytest.approx(got)
