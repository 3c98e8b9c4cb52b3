# SPDX-License-Identifier: Apache-2.0
"""Options of ``[agent]`` in a scenario."""

import pytest

from tests.unit.lab.commands.refusals import refused

SCENARIO = """
name: one
duration_s: 5
host:
  core_types:
    - {{name: slow, count: 2, coefficient: 1.0, threads_per_core: 2, smt_busy_factor: 0.6}}
vms:
  - {{name: one, extra_specs: {{"amp:pref_core": 0.5}}}}
agent:
  {option}
"""


@pytest.fixture
def simulate(tmp_path, amp_nova):
    """Runs ``amp-nova simulate`` with an option."""

    def run(option):
        path = tmp_path / "one.yaml"
        path.write_text(SCENARIO.format(option=option))
        return amp_nova("simulate", path)

    return run


@pytest.mark.parametrize(
    "option",
    [
        "smt: whole_core",
        "coefficients: adaptive",
        "reserve_ratio: 0.1",
        "affinity: pcpu",
        "libvirt_uri: test:///default",
        "cycle_s: null",
    ],
)
def test_every_option_is_accepted(simulate, option):
    """Also one that has no effect without a real host."""
    status, _, err = simulate(option)

    assert (status, err) == (0, "")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("smt: both", "[agent] smt = both is not allowed: Valid values are [shared, whole_core, "),
        ("cycle_s: 0.01", "cycle_s = 0.01 is not allowed: Should be greater than or equal to 0.05"),
        ("cycel_s: 1", "'cycel_s' is not an option of [agent]: did you mean 'cycle_s'?"),
        ("policy: acfs", "give the policy beside 'agent', at the top of the scenario"),
        ("smt: [shared]", "agent.smt is a list: give text"),
        ("smt: [[a]]", "agent is 'smt: a list': give text"),
    ],
)
def test_a_wrong_option_is_a_sentence_with_its_line(simulate, option, says):
    """As for any other key of a scenario."""
    said = refused(simulate(option))

    assert "line 10: " in said
    assert says in said
