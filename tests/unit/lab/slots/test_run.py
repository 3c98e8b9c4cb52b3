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
