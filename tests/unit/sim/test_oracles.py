"""The papers' own figures, from the loop over the simulated host: policies see only counters."""

import functools

import pytest

from amp_nova.flavor.extra_specs import parse
from amp_nova.plugins import load_policy
from amp_nova.sim.run import run
from amp_nova.sim.scenarios.scenario import Guest, Scenario
from amp_nova.sim.scenarios.workload import Phase, Workload
from tests.unit.sim.builders import topology

DURATION_S = 600.0
SAEZ = [  # speedups; ASP and unfairness of the optimum, of hsp and of rr, on two big cores
    ((4.0, 3.0, 2.0, 1.5), (3.819, 1.0), (5.0, 2.0), (3.25, 1.333)),
    ((3.5, 3.2, 1.4, 1.2), (3.794, 1.0), (4.7, 1.4), (2.65, 1.426)),
    ((4.7, 2.5, 1.3, 1.1), (4.331, 1.054), (5.2, 1.3), (2.8, 1.574)),
]


@functools.cache
def simulate(policy, speeds, fast, slow, coefficient=2.0, duration_s=DURATION_S, **params):
    """One single-vCPU guest for every speedup."""
    guests = tuple(
        Guest(f"vm{i}", parse({}, 1), Workload((Phase((1.0, s)),)), {})
        for i, s in enumerate(speeds)
    )
    host = topology(fast, slow, coefficient)
    made = Scenario("oracle", duration_s, host, guests, policy)
    return run(made, load_policy(policy, **params))


def shares(result):
    return [vm.fast_share for vm in result.vms.values()]


def slowdown(result, fair):
    """The greatest slowdown of any guest against amp-fair."""
    return max(
        1.0 - vm.progress_refcores / fair.vms[name].progress_refcores
        for name, vm in result.vms.items()
    )


@pytest.mark.parametrize(("speeds", "best", "fast_first", "even"), SAEZ)
def test_table_of_saez2015(speeds, best, fast_first, even):
    """acfs and eqp reach the optimum; hsp, rr and a-dwrr reach their published values."""
    for policy, (asp, unfairness) in [
        ("acfs", best),
        ("eqp", best),
        ("hsp", fast_first),
        ("rr", even),
        ("a-dwrr", even),
    ]:
        result = simulate(policy, speeds, 2, 2, max(speeds))
        assert result.asp == pytest.approx(asp, rel=0.01), policy
        assert result.unfairness == pytest.approx(unfairness, rel=0.01), policy


def test_proportional_shares():
    """prop-sp: big-core time in proportion to the speedup, at most all of a vCPU's own time."""
    assert shares(simulate("prop-sp", (4.0, 3.0, 2.0, 1.5), 2, 2)) == pytest.approx(
        [2 * s / 10.5 for s in (4.0, 3.0, 2.0, 1.5)], abs=0.01
    )
    # 2 x 8 / 12 exceeds 1: the excess is divided among the others.
    assert shares(simulate("prop-sp", (8.0, 2.0, 1.0, 1.0), 2, 2)) == pytest.approx(
        [1.0, 0.5, 0.25, 0.25], abs=0.01
    )


@pytest.mark.parametrize("bound", [0.05, 0.1, 0.2])
def test_the_adaptive_policy_meets_its_bound_and_uses_it(bound):
    """No guest loses more against amp-fair, and no common R within the bound is faster."""
    mix = {"speeds": (4.0, 3.0, 2.0, 1.5), "fast": 2, "slow": 2, "coefficient": 4.0}
    result = functools.partial(simulate, **mix, duration_s=300.0)
    fair, adaptive = result("amp-fair"), result("amp-adaptive-fair", max_slowdown=bound)
    common = [result("amp-r-fair", fair_ratio=r) for r in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]

    assert slowdown(adaptive, fair) <= bound + 0.005
    within = [r.throughput for r in common if slowdown(r, fair) <= bound + 0.005]
    assert adaptive.throughput >= max(within) - 0.005


def test_equal_slowdown_on_a_large_host_where_many_gain_little():
    """vCPUs that stay on small cores for good do not hold up the others, however far ahead."""
    speeds = tuple(1.0 + 2.0 * i / 31 for i in range(32))

    result = simulate("acfs", speeds, 8, 24, 3.0, duration_s=400.0)

    # The slowdown S of the guests that share the 8 big cores solves sum (1/S - 1/s)/(1 - 1/s) = 8.
    low, high = 1.0, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        shared = sum(max(0.0, (1 / middle - 1 / s) / (1 - 1 / s)) for s in speeds if s > 1.0)
        low, high = (middle, high) if shared > 8 else (low, middle)
    slowdowns = [vm.slowdown for vm in result.vms.values()]
    assert max(slowdowns) == pytest.approx(low, rel=0.02)
    assert [s for s in slowdowns if s < low * 0.98] == pytest.approx(
        [s for s in speeds if s < low * 0.98], rel=0.02
    )
