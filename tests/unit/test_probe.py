"""The probe judges vCPUs of a simulated host as the host itself would, and runs anywhere, alone."""

import ast
import json
import random
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from amp_nova import probe
from tests.pcpu import Pcpu, Thread
from tests.properties.examples import examples

SECONDS = 20.0
PERIODS_S = (0.01, 0.02, 0.05, 0.1)
FILE = Path(probe.__file__)


def limited(draw):
    """A vCPU with a limit, alone."""
    period_s = draw.choice(PERIODS_S)
    return Thread(draw.uniform(0.05, 0.9) * period_s, period_s), []


def busy_neighbours(draw):
    """One to four neighbours that always compute."""
    return Thread(), [Thread() for _ in range(draw.randint(1, 4))]


def irregular_neighbours(draw):
    """One or two neighbours that compute and sleep at random."""

    def burst(r):
        return r.expovariate(1 / 0.006), r.expovariate(1 / 0.01)

    return Thread(), [Thread(burst=burst) for _ in range(draw.randint(1, 2))]


def booked_neighbours(draw):
    """One or two neighbours that come first and have limits of the same period: a regular load."""
    period_s = draw.choice((0.02, 0.1))
    count = draw.randint(1, 2)
    quotas_s = [draw.uniform(0.1, 0.4) * period_s for _ in range(count)]
    return Thread(), [Thread(quota_s, period_s, weight=10.0) for quota_s in quotas_s]


def timers(draw):
    """A neighbour that does the same work at each tick of a timer of its own."""
    period_s, share = draw.choice((0.01, 0.02, 0.04)), draw.uniform(0.1, 0.4)
    burst = (share * period_s, (1 - share) * period_s)
    return Thread(), [Thread(burst=lambda r: burst, weight=3.0)]


CONTENTION = (busy_neighbours, irregular_neighbours, booked_neighbours, timers)


def judged(make, seed):
    """The vCPU, what the probe says of it, and the share of time in which it ran."""

    def pcpu():
        draw = random.Random(seed)
        own, others = make(draw)
        tick_s, noise_hz = draw.choice((1e-3, 4e-3)), draw.choice((0.2, 10.0, 40.0))
        return Pcpu(own, others, seed, tick_s, noise_hz)

    host = pcpu()
    probe.busy(host.clock, 0.75 * SECONDS, 1)
    host.sleep(0.0)  # accounts for the last run
    share = host.own.run_s / host.now
    host = pcpu()
    found = probe.probed(probe.Vcpu(host.clock, host.sleep, 1), 0.0, SECONDS)
    return host.own, found, share


def document(*found):
    """The report of vCPUs."""
    rest = {"steal_ratio": 0.0, "other_processes_ratio": 0.0}
    return probe.report([dict(each, vcpu=n, **rest) for n, each in enumerate(found)], 60, None)


@pytest.mark.parametrize("seed", range(examples(12)))
def test_a_limit_and_its_period_are_found(seed):
    """Capacity within 2 %, the period within 5 %, and no contention."""
    own, found, share = judged(limited, seed)

    assert found["capacity_cores"] == pytest.approx(share, rel=0.02)
    assert found["limit_cores"] == pytest.approx(own.quota_s / own.period_s, rel=0.02)
    assert found["period_s"] == pytest.approx(own.period_s, rel=0.05)
    assert found["lost_to_contention_ratio"] < probe.NAMED_RATIO
    assert document(found)["scs_kept"] == (own.quota_s / own.period_s >= 0.2)


@pytest.mark.parametrize("seed", range(examples(12)))
@pytest.mark.parametrize("make", CONTENTION)
def test_contention_is_not_taken_for_a_limit(make, seed):
    """Also if it is as regular as one."""
    _, found, share = judged(make, seed)

    assert found["limit_cores"] is None
    assert found["lost_to_limit_ratio"] == 0.0
    assert found["capacity_cores"] == pytest.approx(share, rel=0.02)
    assert found["lost_to_contention_ratio"] == pytest.approx(1 - share, abs=0.02)
