# SPDX-License-Identifier: Apache-2.0
"""How far behind a core of its speed a limit may keep a vCPU."""

import random

import pytest

from amp_nova.model.bandwidth import TICK_S, Bandwidth, bandwidth, period_us, reference_delay_s
from amp_nova.tenant.probe import delay_s
from tests.properties.examples import examples

PERIODS = 200


def gaps_of(draw, limit):
    """When it does not run: its quota comes at any time, is overrun, and has to make up for it."""
    period_s, quota_s = limit.period_us / 1e6, limit.quota_us / 1e6
    gaps, ended_s, overrun_s = [], 0.0, 0.0
    for number in range(PERIODS):
        left_s = quota_s - overrun_s
        overrun_s = max(0.0, -left_s)
        if left_s > 0.0:
            latest_s = period_s - left_s
            begins_s = number * period_s + latest_s * draw.choice((0.0, 1.0, draw.random()))
            overrun_s = draw.choice((0.0, TICK_S)) * (
                begins_s + left_s + TICK_S < (number + 1) * period_s
            )
            gaps.append((ended_s, begins_s))
            ended_s = begins_s + left_s + overrun_s
    return [(start, end) for start, end in gaps if end > start]


@pytest.mark.parametrize("seed", range(examples(50)))
def test_no_schedule_that_keeps_to_the_limit_is_further_behind(seed):
    """Wherever the quota falls in each period, and if a tick overruns it."""
    draw = random.Random(seed)
    share = draw.uniform(0.02, 0.95)
    limit = bandwidth(share, period_us(share))

    behind_s = delay_s(gaps_of(draw, limit), [(0.0, 0.0, 0)], limit.cores)

    assert 0.0 < behind_s <= limit.delay_s + 1e-9


def test_the_worst_schedule_is_that_far_behind():
    """First at once, with a tick more than the quota, then as late as possible."""
    limit = Bandwidth(5_000, 20_000)
    gaps = [(0.009, 0.039), (0.040, 0.055)]  # 1 ms is left of the second quota, 5 ms of the third

    assert delay_s(gaps, [(0.0, 0.0, 0)], limit.cores) == pytest.approx(0.042)
    assert limit.delay_s == pytest.approx(0.062), "the scheduler may be a tick late as well"


@pytest.mark.parametrize(
    ("refcores", "least_s"), [(None, None), (1.0, None), (0.5, 0.036), (0.1, 0.17)]
)
def test_the_delay_of_a_booking_on_a_reference_core(refcores, least_s):
    """Nothing where nothing limits it."""
    assert reference_delay_s(refcores) == (least_s if least_s is None else pytest.approx(least_s))
