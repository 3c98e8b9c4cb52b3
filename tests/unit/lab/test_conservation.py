# SPDX-License-Identifier: Apache-2.0
"""Fast-core conservation with guests that sleep: no fast core idles while a vCPU waits."""

import pytest

from amp_nova_lab.run import run
from amp_nova_lab.scenarios.workload import Phase
from tests.unit.lab.builders import guest, scenario

RANKING = ("amp-vm", "amp-vcpu", "hsp")
SHARING = ("amp-fair", "amp-r-fair", "amp-adaptive-fair", "acfs", "prop-sp", "eqp", "rr", "a-dwrr")


def sleeper(name, period_s, speed=2.0):
    """A guest that is awake for the first half of every period."""
    speeds = (1.0, speed)
    phases = Phase(speeds, 1.0, period_s / 2), Phase(speeds, 0.0, period_s / 2)
    return guest(name, phases=phases)


def simulate(policy, period_s, busy, **host):
    guests = [sleeper("half", period_s), *(guest(f"busy{i}") for i in range(busy))]
    return run(scenario(*guests, duration_s=120.0, policy=policy, **host))


@pytest.mark.parametrize("policy", [*RANKING, *SHARING])
@pytest.mark.parametrize("period_s", [0.2, 5.0])
def test_the_fast_core_does_not_idle_while_others_share_a_slow_one(policy, period_s):
    """Three vCPUs, two pCPUs: a vCPU that waits on the slow one gets what the sleeper leaves."""
    assert simulate(policy, period_s, busy=2).fast_idle_ratio < 0.02


@pytest.mark.parametrize("policy", SHARING)
def test_a_long_sleep_leaves_the_fast_core_to_others(policy):
    """The core idles for the second it takes to notice, not for the whole sleep."""
    assert simulate(policy, 20.0, busy=1).fast_idle_ratio < 0.07


@pytest.mark.parametrize("policy", SHARING)
def test_a_guest_that_sleeps_every_other_interval_is_not_put_on_fast_cores_to_sleep(policy):
    """Awake for 2.5 s, asleep for 2.5 s, exactly the policy's interval: if its turns fell into its
    sleep, the core would idle half of the time."""
    result = simulate(policy, 5.0, busy=1)

    assert result.fast_idle_ratio < 0.3
    assert result.vms["half"].fast_share > 0.15


def test_equal_sleepers_rarely_swap_places():
    """Demand in the last few seconds is random and not enough reason to swap."""
    guests = sleeper("a", 0.7), sleeper("b", 0.9)

    result = run(scenario(*guests, duration_s=300.0, policy="hsp"))

    assert result.migrations < 20
