# SPDX-License-Identifier: Apache-2.0
"""For how long enforcement would throttle: the model against CFS bandwidth, period by period."""

import pytest

from amp_nova.accounting.delivery import Account, Conditions, add_interval
from amp_nova.accounting.would_throttle import WouldLimit, throttled_s
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.observation import Usage
from amp_nova.model.topology import CoreType

FAST = CoreType("fast", 2.0)


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
