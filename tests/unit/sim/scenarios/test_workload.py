"""When a workload wants a pCPU."""

import itertools
import math

import pytest

from amp_nova.sim.scenarios.workload import Phase, Workload, turns


def wanted_s(workload, until_s, shift_s=0.0):
    """For how long it wants a pCPU until ``until_s``."""
    found = itertools.takewhile(lambda t: t.at_s < until_s, turns(workload.phases, shift_s))
    pairs = itertools.pairwise([*((t.at_s, t.wants) for t in found), (until_s, None)])
    return math.fsum(end - start for (start, wants), (end, _) in pairs if wants)


def test_constant_demand_is_a_single_turn():
    """Nothing ever changes, so it costs no event."""
    assert [(t.at_s, t.wants) for t in turns([Phase((1.0,))])] == [(0.0, True)]
    assert [t.wants for t in turns([Phase((1.0,), 0.0)])] == [False]


@pytest.mark.parametrize("shift_s", [0.0, 0.03, 0.0999])
@pytest.mark.parametrize("utilization", [0.01, 0.3, 0.5, 0.99])
def test_every_second_has_its_share(utilization, shift_s):
    """The utilization is met in every second, wherever in its cycle the guest starts."""
    workload = Workload((Phase((1.0,), utilization),))

    for second in (1, 2, 100):
        assert wanted_s(workload, second, shift_s) == pytest.approx(second * utilization)


def test_phases_follow_each_other_for_ever():
    """Two seconds awake and one asleep, repeated, with their speeds."""
    workload = Workload((Phase((1.0, 2.0), 1.0, 2.0), Phase((1.0, 3.0), 0.0, 1.0)))

    found = list(itertools.islice(turns(workload.phases), 5))

    assert [(t.at_s, t.wants, t.speeds[1]) for t in found] == [
        (0.0, True, 2.0),
        (2.0, False, 3.0),
        (3.0, True, 2.0),
        (5.0, False, 3.0),
        (6.0, True, 2.0),
    ]


def test_time_never_goes_back():
    """Phases that end within a cycle of running and sleeping leave no turn behind."""
    phases = (Phase((1.0,), 0.37, 0.123), Phase((1.0,), 0.81, 0.057), Phase((1.0,), 1.0, 0.01))
    times = [t.at_s for t in itertools.islice(turns(phases, 0.042), 5000)]

    assert all(a <= b for a, b in itertools.pairwise(times))
