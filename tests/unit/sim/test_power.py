"""Energy of a simulated host, and what it buys."""

from dataclasses import fields, replace

import pytest

from amp_nova.plugins import load_policy
from amp_nova.sim.report import Result, ResultWithPower
from amp_nova.sim.run import run
from amp_nova.sim.scenarios.hosts import Machine, Power
from amp_nova.sim.slots import run as slots
from tests.unit.sim.builders import guest, scenario

POWER = {"fast": Power(2.0, 12.0), "slow": Power(0.5, 3.0)}


def powered(*guests, power=POWER, **more):
    """A scenario on a host with one fast and one slow core that take power."""
    return replace(scenario(*guests, **more), machine=Machine(power=power))


@pytest.mark.parametrize(
    ("core_type", "watts", "speed"), [("fast", 12.0 + 0.5, 2.0), ("slow", 2.0 + 3.0, 1.0)]
)
def test_performance_per_watt_of_one_core(core_type, watts, speed):
    """The other core idles: 2 / 12.5 on the fast one, 1 / 5 on the slow one."""
    made = powered(guest(core_type=core_type), duration_s=30.0, policy="pinned")

    for result in (run(made), slots.run(made, load_policy("credit"))):
        assert result.energy_j == pytest.approx(30.0 * watts)
        assert result.power_w == pytest.approx(watts)
        assert result.performance_per_watt == pytest.approx(speed / watts)


def test_a_host_that_idles_takes_power():
    """No guest, no work: 2.5 W for nothing."""
    result = run(powered())

    assert (result.power_w, result.performance_per_watt) == (2.5, 0.0)


def test_nothing_per_nothing_is_unknown():
    """Without any power there is no performance per watt."""
    assert (
        run(powered(guest(), power=dict.fromkeys(POWER, Power(0.0, 0.0)))).performance_per_watt
        is None
    )


def test_without_power_the_result_is_as_ever():
    """No key of it appears."""
    assert type(run(scenario(guest()))) is Result
    assert {f.name for f in fields(ResultWithPower)} - {f.name for f in fields(Result)} == {
        "energy_j",
        "power_w",
        "performance_per_watt",
    }
