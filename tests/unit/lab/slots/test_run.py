# SPDX-License-Identifier: Apache-2.0
"""The slot schedulers, against values of chen2014 computed by hand."""

import pytest

from amp_nova.plugins import load_policy
from amp_nova_lab.slots import run
from amp_nova_lab.slots.board import Board
from amp_nova_lab.slots.integrated import view
from tests.unit.lab.builders import guest, scenario, topology

PAPER = {"fast": 2, "slow": 6, "coefficient": 1.8}
FAST, SLOW = {0, 1}, {2, 3, 4, 5, 6, 7}


def first_places(*guests, **params):
    """Where the initial mapping puts each instance's vCPUs."""
    policy = load_policy("integrated", **params)
    _, on = policy.first_places(view(Board(topology(**PAPER)), guests))
    return {g.name: [on[g.name, i] for i in range(len(g.booking.vcpus))] for g in guests}


def test_initial_mapping_of_the_papers_machines():
    """2 fast cores of 2.7 and 6 slow ones of 1.5 GHz; 2, 2, 6 and 8 vCPUs of equal weight.

    UF is 0 for the first; for the second 0.4 x (1/8 / 1.8) = 0.028; for the third
    0.6 x (6 - 2) / 6 = 0.4 and more, above 0.3; the fourth has more than N(SC) vCPUs.
    """
    found = first_places(*(guest(f"vm{i}", n) for i, n in enumerate((2, 2, 6, 8))))

    assert [set(pcpus) for pcpus in found.values()] == [FAST, FAST, SLOW, FAST | SLOW]


@pytest.mark.parametrize(("threshold", "there"), [(0.108, SLOW), (0.110, FAST)])
def test_load_of_the_fast_cores_counts(threshold, there):
    """Ten of 10.2 weights are there: Load = 10 / 10.2 / 2 / 1.8 = 0.2723, UF = 0.1089."""
    found = first_places(
        guest("a", 2, weight="10"), guest("b", 2, weight="0.2"), threshold=threshold
    )

    assert set(found["b"]) <= there


def progress(result):
    return [vm.progress_refcores for vm in result.vms.values()]


@pytest.mark.parametrize(
    ("weight", "speeds"),
    [("1", [0.75] * 4), ("1.25", [0.882, 0.706, 0.706, 0.706])],
    ids=["equal", "more"],
)
def test_work_is_proportional_to_weight_on_asymmetric_cores(weight, speeds):
    """Four instances on cores of speed 2 and 1: 3 / 4 each, or 3 x 1.25 / 4.25 and 3 / 4.25."""
    others = (guest(name) for name in "bcd")
    made = scenario(guest("a", weight=weight), *others, fast=1, slow=1, duration_s=60)

    result = run.run(made, load_policy("integrated"))

    assert progress(result) == pytest.approx(speeds, rel=0.02)


def test_credit_shares_time_and_not_work():
    """Two vCPUs, two cores: each has one; the seed decides which has the fast one."""
    made = [scenario(guest("a"), guest("b"), seed=seed) for seed in range(8)]

    found = {tuple(progress(run.run(m, load_policy("credit")))) for m in made}

    assert found == {(1.0, 2.0), (2.0, 1.0)}


@pytest.mark.parametrize(("params", "share"), [({}, 1 / 2), ({"printed": "5"}, 1 / 3)])
def test_aash_shares_by_weight_or_as_printed_by_vcpu(params, share):
    """A guest of one vCPU beside one of two: half of the fast core by weight, or a third."""
    made = scenario(guest("a"), guest("b", 2), fast=1, slow=2, duration_s=60)

    result = run.run(made, load_policy("aash", **params))

    assert result.vms["a"].progress_refcores == pytest.approx(1 + share, rel=0.03)


def parallel_speed(policy, **specs):
    """Of eight parallel vCPUs with a barrier every 20 ms, among eighteen on eight cores."""
    guests = [guest(f"vm{i}", n, speed=1.8) for i, n in enumerate((2, 2, 6))]
    program = guest("parallel", 8, speed=1.8, barrier=0.02, **specs)
    result = run.run(scenario(*guests, program, duration_s=10.0, **PAPER), load_policy(policy))
    return result.vms["parallel"].progress_refcores


def test_spinning_at_barriers_is_lost_unless_all_run_at_once():
    """It is under credit; with ``amp:parallel=false`` vCPUs are scheduled one by one as well."""
    at_once = parallel_speed("integrated")

    assert at_once > 1.4 * parallel_speed("credit")
    assert parallel_speed("integrated", parallel="true") == at_once
    assert parallel_speed("integrated", parallel="false") < 0.9 * at_once


def test_finished_work_leaves_its_cores_to_others():
    """10 s of work beside an endless neighbour take 20 s; then the neighbour has all cores."""
    guests = (guest("a", 2, speed=1.0, work=10.0), guest("b", 2, speed=1.0))
    made = scenario(*guests, fast=1, slow=1, coefficient=1.0)

    result = run.run(made, load_policy("integrated"))

    assert result.vms["a"].completion_s == pytest.approx(20.0, rel=0.02)
    assert result.vms["b"].progress_refcores == pytest.approx((10 + 10) / 30, rel=0.02)
