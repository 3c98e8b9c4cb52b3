# SPDX-License-Identifier: Apache-2.0
"""A cloud in which instances come and go, against the formulas of queueing theory."""

import math

import pytest

from amp_nova.flavor.extra_specs import parse
from amp_nova_lab.cloud.host import CloudFlavor
from amp_nova_lab.cloud.run import SimulatedCloud, run
from tests.support import hosts

SLOW = hosts.topology({"slow": (5, 1.0)})
HYBRID = hosts.topology({"slow": (1, 1.0), "fast": (1, 2.0)})
FOREVER_S = 1e12


def flavor(specs=None, vcpus=1, sensitivity=1.0, name="f", share=1.0):
    """A flavor; best effort without ``specs``."""
    return CloudFlavor(name, parse(specs or {}, vcpus), share, sensitivity)


def erlang_b(servers, load):
    """The part of arrivals that find all servers busy (Erlang's loss formula)."""
    weights = [load**n / math.factorial(n) for n in range(servers + 1)]
    return weights[-1] / sum(weights)


def test_refusals_follow_erlangs_loss_formula():
    """Every instance books a core; two hosts of five cores are one pool of ten."""
    cloud = SimulatedCloud([SLOW] * 2, [flavor({"amp:pref_core": "1"})], 4.0, 100.0)

    result = run(cloud, 90_000.0)

    expected = erlang_b(10, 8.0)
    assert result.refused / result.arrived == pytest.approx(expected, rel=0.1, abs=0.003)
    assert {s.unplaced for s in result.samples} == {0}
    assert max(s.booked_refcores for s in result.samples) <= 10


def test_arrivals_keep_the_cloud_at_its_size():
    """Little's law: arrivals per second times lifetime are alive, if nobody is refused."""
    cloud = SimulatedCloud([SLOW] * 10, [flavor()], 4.0, 7200.0)

    result = run(cloud, 5 * 86_400.0)

    alive = [s.instances for s in result.samples]
    assert sum(alive) / len(alive) == pytest.approx(40.0, rel=0.1)
    assert result.refused == 0


@pytest.mark.parametrize("seed", range(5))
def test_an_instance_goes_where_it_adds_most(seed):
    """To the host with the fast core, whatever the order of the hosts."""
    hosts_ = [SLOW, HYBRID, SLOW]
    cloud = SimulatedCloud(hosts_, [flavor()], 1 / 3, FOREVER_S, reserve_ratio=0.0)

    placed = run(cloud, 3600.0, seed)

    assert placed.samples[-1].best_effort_refcores == pytest.approx(2.0)


def test_a_booking_is_packed_where_the_scheduler_said():
    """1.5 reference cores need the fast core, and a second one finds no place."""
    cloud = SimulatedCloud([HYBRID], [flavor({"amp:pref_core": "1.5"})], 2.0, FOREVER_S)

    result = run(cloud, 3600.0)

    assert (result.arrived, result.refused) == (2, 1)
    assert result.samples[-1].booked_refcores == 1.5
    assert result.samples[-1].unplaced == 0


def test_hosts_hold_as_many_vcpus_as_allowed():
    """Two pCPUs at a ratio of 1.5 hold three vCPUs."""
    cloud = SimulatedCloud([HYBRID], [flavor()], 5.0, FOREVER_S, vcpus_ratio=1.5)

    assert run(cloud, 3600.0).refused == 2


def test_a_day_can_be_repeated():
    """The same seed gives the same day, another one another day."""
    flavors = [flavor({"amp:pref_core": "0.4"}, name="a"), flavor(vcpus=2, name="b", share=2.0)]
    cloud = SimulatedCloud([HYBRID, SLOW] * 3, flavors, 4.0, 3600.0)

    assert run(cloud, 7200.0, 1) == run(cloud, 7200.0, 1) != run(cloud, 7200.0, 2)
