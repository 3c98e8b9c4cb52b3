# SPDX-License-Identifier: Apache-2.0
"""When a workload wants a pCPU."""

import itertools
import math

import pytest

from amp_nova_lab.counters import CounterModel, Counting
from amp_nova_lab.guest import Behaviour
from amp_nova_lab.scenarios.workload import Phase, Workload
from tests.unit.lab.builders import topology


def turns(*phases, shift_s=0.0):
    """What a vCPU with these phases does, turn by turn."""
    model = CounterModel(topology(), Counting(), "vm", {})
    behaviour = Behaviour(Workload(phases), 0.0, shift_s, model)
    yield behaviour.turn
    while behaviour.upcoming is not None:
        behaviour.next()
        yield behaviour.turn


@pytest.mark.parametrize("shift_s", [0.0, 0.03, 0.0999])
@pytest.mark.parametrize("utilization", [0.01, 0.3, 0.5, 0.99])
def test_every_second_has_its_share(utilization, shift_s):
    """The utilization is met in every second, wherever in its cycle the guest starts."""
    found = turns(Phase((1.0, 2.0), utilization), shift_s=shift_s)
    found = list(itertools.takewhile(lambda t: t.at_s < 101, found))

    for until_s in (1, 2, 100):
        ends = [*(t.at_s for t in found[1:]), 101]
        wanted = (min(end, until_s) - t.at_s for t, end in zip(found, ends, strict=True) if t.wants)
        assert math.fsum(s for s in wanted if s > 0) == pytest.approx(until_s * utilization)


def test_phases_follow_each_other_for_ever_and_time_never_goes_back():
    """Phases that end within a cycle of running and sleeping leave no turn behind."""
    phases = (
        Phase((1.0, 2.0), 0.37, 0.123),
        Phase((1.0, 3.0), 0.81, 0.057),
        Phase((1.0, 4.0), 1.0, 0.01),
    )
    found = list(itertools.islice(turns(*phases, shift_s=0.042), 5000))

    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(found))
    assert [speed for speed, _ in itertools.groupby(t.speeds[1] for t in found)][:7] == [
        2.0, 3.0, 4.0, 2.0, 3.0, 4.0, 2.0,
    ]  # fmt: skip
