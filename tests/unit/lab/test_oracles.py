# SPDX-License-Identifier: Apache-2.0
"""Every policy's unfairness and throughput against the optimum; policies see only counters.

saez2015 measures slowdown against running alone on the host, where the threads of a program take
turns on its big cores. ``doc/source/user/policies.rst`` has the table.
"""

import functools

import pytest

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.plugins import load_policy
from amp_nova_lab.counters import Counting
from amp_nova_lab.host import SimHost
from amp_nova_lab.reproduce.saez2015 import optimum
from amp_nova_lab.run import run
from tests.unit.lab.builders import guest, scenario, topology

MIXES = {  # speedup and vCPUs of each instance; fast and slow cores; ASP, unfairness of the optimum
    "1.5 to 4": ([(4.0, 1), (3.0, 1), (2.0, 1), (1.5, 1)], 2, 2, 3.819, 1.0),
    "two and two": ([(3.5, 1), (3.2, 1), (1.4, 1), (1.2, 1)], 2, 2, 3.794, 1.0),
    "1.1 to 4.7": ([(4.7, 1), (2.5, 1), (1.3, 1), (1.1, 1)], 2, 2, 4.331, 1.054),
    "three and nine": ([(2.5, 1), (2.3, 1), (2.1, 1), (2.1, 9)], 2, 10, 2.571, 1.0),
    "three and nine, low": ([(2.4, 1), (2.2, 1), (2.0, 1), (1.3, 9)], 2, 10, 2.410, 1.144),
    "one pair": ([(3.0, 1), (1.5, 1), (2.0, 2)], 2, 2, 1.971, 1.0),
    "fours": ([(2.5, 4), (2.2, 4), (1.8, 4)], 2, 10, 0.632, 1.0),
    "sixes": ([(2.4, 6), (1.8, 6)], 2, 10, 0.387, 1.0),
    "one to three": ([(2.0, 1), (3.0, 2), (1.5, 3), (2.5, 2)], 4, 4, 2.923, 1.0),
}


@functools.cache  # tests look at the same runs
def simulate(mix, policy, duration_s=300.0, **params):
    programs, fast, slow = MIXES[mix][:3] if isinstance(mix, str) else mix
    guests = [guest(f"vm{i}", n, speed=s) for i, (s, n) in enumerate(programs)]
    coefficient = max(3.0, *(s for s, _ in programs))
    made = scenario(*guests, duration_s=duration_s, fast=fast, slow=slow, coefficient=coefficient)
    return run(made, load_policy(policy, **params))


@pytest.mark.parametrize("mix", MIXES)
def test_acfs_and_eqp_reach_the_optimum(mix):
    """Equal slowdown of instances, with the highest throughput possible at that."""
    programs, fast, _, asp, unfairness = MIXES[mix]
    assert optimum(programs, fast) == pytest.approx((asp, unfairness), abs=0.001)

    for policy in ("acfs", "eqp"):
        result = simulate(mix, policy, duration_s=600.0)
        assert result.asp == pytest.approx(asp, rel=0.01), policy
        assert result.unfairness <= unfairness * 1.01, policy
        assert result.fast_idle_ratio < 0.001, policy


def test_by_vcpu_on_request():
    """Each vCPU compared with a fast core to itself: what instances then get is far from equal."""
    for policy, unfairness in (("acfs", 1.69), ("eqp", 1.69), ("prop-sp", 1.83)):
        result = simulate("three and nine", policy, per_vcpu=True)
        assert result.unfairness == pytest.approx(unfairness, abs=0.02), policy


def test_proportional_shares_are_of_the_whole_instance():
    """prop-sp: speedups 2.5, 2.3, 2.1, and 1 + 1.1 x 2 / 9 of the nine vCPUs together."""
    result = simulate("three and nine", "prop-sp")

    wholes = [2.5, 2.3, 2.1, 1.0 + 1.1 * 2 / 9]
    fast_cores = [2 * whole / sum(wholes) for whole in wholes]
    shares = [fast_cores[0], fast_cores[1], fast_cores[2], fast_cores[3] / 9]
    assert [vm.fast_share for vm in result.vms.values()] == pytest.approx(shares, abs=0.01)


def slowdown(result, fair):
    """The greatest slowdown of any guest against amp-fair."""
    return max(
        1.0 - vm.progress_refcores / fair.vms[name].progress_refcores
        for name, vm in result.vms.items()
    )


@pytest.mark.parametrize("bound", [0.05, 0.1, 0.2])
def test_the_adaptive_policy_meets_its_bound_and_uses_it(bound):
    """No guest loses more against amp-fair, and no common R within the bound is faster."""
    result = functools.partial(simulate, "1.5 to 4")
    fair, adaptive = result("amp-fair"), result("amp-adaptive-fair", max_slowdown=bound)
    common = [result("amp-r-fair", fair_ratio=r) for r in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]

    assert slowdown(adaptive, fair) <= bound + 0.005
    within = [r.throughput for r in common if slowdown(r, fair) <= bound + 0.005]
    assert adaptive.throughput >= max(within) - 0.005


def test_equal_slowdown_on_a_large_host_where_many_gain_little():
    """vCPUs that stay on small cores for good do not hold up the others, however far ahead."""
    programs = tuple((1.0 + 2.0 * i / 31, 1) for i in range(32))

    result = simulate((programs, 8, 24), "acfs", duration_s=400.0)

    asp, unfairness = optimum(programs, 8)
    assert result.asp == pytest.approx(asp, rel=0.02)
    assert result.unfairness <= unfairness * 1.02


def test_hsp_ranks_by_the_speedup_of_the_whole_instance():
    """Three threads gain 3 each, but 1 + 2 / 3 together from one fast core: the single one wins."""
    programs = (3.0, 3), (2.0, 1)

    whole = simulate((programs, 1, 3), "hsp")
    each = simulate((programs, 1, 3), "hsp", per_vcpu=True)

    assert whole.vms["vm1"].fast_share > 0.95
    assert each.vms["vm1"].fast_share < 0.05


def seconds(host, policy, count):
    """Seconds of a host under the agent's loop."""
    loop = Loop(host, host, LoopSettings(), load_policy(policy), stopwatch=lambda: 0.0)
    for second in range(1, count + 1):
        loop.cycle()
        host.advance(float(second))
        yield second


@pytest.mark.parametrize("policy", ["acfs", "eqp", "hsp", "prop-sp", "rr"])
def test_the_vcpus_of_an_instance_take_turns(policy):
    """Six vCPUs share what their instance has of two fast cores, none of them is left out."""
    guests = [guest("more", 6, speed=2.4), guest("less", 6, speed=1.8)]
    host = SimHost(topology(fast=2, slow=10, coefficient=3.0), guests)
    list(seconds(host, policy, 300))

    fast_s = [meter.run_s[1] for meter in host.meters("more")]
    assert min(fast_s) > 40.0
    assert max(fast_s) - min(fast_s) < 20.0


@pytest.mark.parametrize("counted", [True, False])
def test_a_newcomer_is_owed_nothing(counted):
    """After 300 s without it an instance has an even share, not all of the fast core."""
    guests = guest("a"), guest("b"), guest("c")
    host = SimHost(topology(fast=1, slow=3), guests, counting=Counting(works=counted))
    for second in seconds(host, "acfs", 420):
        if second == 300:
            host.add(guest("new"))

    (meter,) = host.meters("new")
    assert meter.run_s[1] == pytest.approx(30.0, abs=8.0)
