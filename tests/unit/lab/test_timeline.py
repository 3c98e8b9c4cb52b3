# SPDX-License-Identifier: Apache-2.0
"""Simulated time gets on, whatever happens at nearly the same moment."""

from dataclasses import replace

import pytest

from amp_nova.model.topology import PCpu
from amp_nova.plugins import load_policy
from amp_nova_lab.run import run
from amp_nova_lab.scenarios.scenario import Scenario
from amp_nova_lab.scenarios.workload import Phase
from tests.unit.lab.builders import guest, topology

DURATION_S = 60.0


def with_siblings(cores):
    """A host whose threads slow each other down: speeds change whenever one sleeps or wakes."""
    host = topology(2, cores - 2)
    types = tuple(replace(t, smt_busy_factor=0.6) for t in host.core_types)
    pcpus = tuple(
        PCpu(p.id, p.core_type, (p.id // 2 * 2, p.id // 2 * 2 + 1), llc=0) for p in host.pcpus
    )
    return replace(host, core_types=types, pcpus=pcpus)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("policy", "cores", "vcpus", "speed", "barrier", "changes_s"),
    [
        ("acfs", 6, 2, 2.79, 0.7, 3.28),
        ("acfs", 6, 2, 2.22, 0.7, 3.96),
        ("rr", 6, 2, 2.15, (0.0, 0.7), 3.59),
        ("eqp", 4, 3, 2.88, (0.0, 0.7), 3.46),
    ],
)
def test_vcpus_that_wait_for_each_other_get_on_when_speeds_change(
    policy, cores, vcpus, speed, barrier, changes_s
):
    """They reach a barrier within a rounding error of each other, again and again."""
    phases = (Phase((1.0, 2.0), 1.0, changes_s), Phase((1.0, 1.5), 0.4, 2.5))
    guests = (guest("program", vcpus, speed, barrier=barrier), guest("other", phases=phases))
    made = Scenario("made", DURATION_S, with_siblings(cores), guests, policy, 1)

    result = run(made, load_policy(policy))

    assert result.vms["program"].progress_refcores > 0.5
