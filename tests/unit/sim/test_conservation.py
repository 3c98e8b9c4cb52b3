"""Fast-core conservation with guests that sleep: no fast core idles while somebody waits."""

import pytest

from amp_nova.sim.run import run
from amp_nova.sim.scenarios.workload import Phase
from tests.unit.sim.builders import guest, scenario

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
    """Three vCPUs, two pCPUs: whoever waits on the slow one has what the sleeper leaves."""
    assert simulate(policy, period_s, busy=2).fast_idle_ratio < 0.02


@pytest.mark.parametrize("policy", RANKING)
@pytest.mark.parametrize("period_s", [0.2, 20.0])
def test_of_alike_vcpus_the_busier_has_the_fast_core(policy, period_s):
    """Two vCPUs, two pCPUs: the fast core goes to the one that never sleeps."""
    result = simulate(policy, period_s, busy=1)

    assert result.fast_idle_ratio < 0.02


@pytest.mark.parametrize("policy", SHARING)
def test_a_long_sleep_leaves_the_fast_core_to_others(policy):
    """Equal shares: the core idles for the second it takes to notice, not for the sleep."""
    assert simulate(policy, 20.0, busy=1).fast_idle_ratio < 0.07


@pytest.mark.parametrize("policy", SHARING)
def test_a_guest_that_sleeps_every_other_interval_is_not_put_on_fast_cores_to_sleep(policy):
    """Awake for 2.5 s, asleep for 2.5 s, as long as the policy's interval: it had its turns asleep,
    the core idled half of the time and so did the other's gain."""
    result = simulate(policy, 5.0, busy=1)

    assert result.fast_idle_ratio < 0.3
    assert result.vms["half"].fast_share > 0.15


def test_alike_sleepers_do_not_change_places_all_the_time():
    """How much one wanted in the last seconds is chance: it takes more than that."""
    guests = sleeper("a", 0.7), sleeper("b", 0.9)

    result = run(scenario(*guests, duration_s=300.0, policy="hsp"))

    assert result.migrations < 20
