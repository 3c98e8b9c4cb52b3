# SPDX-License-Identifier: Apache-2.0
"""Extra specs of best-effort instances, policy by policy, through the loop."""

import pytest

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.plugins import load_policy
from amp_nova_lab.counters import Counting
from amp_nova_lab.host import SimHost
from tests.unit.lab.builders import guest, topology

BY_GAIN = (
    "amp-vm",
    "amp-vcpu",
    "amp-r-fair",
    "amp-adaptive-fair",
    "acfs",
    "hsp",
    "prop-sp",
    "eqp",
)
EVENLY = ("amp-fair", "rr", "a-dwrr", "aash")
WEIGHTED = (
    "amp-fair",
    "amp-vm",
    "amp-vcpu",
    "amp-r-fair",
    "amp-adaptive-fair",
    "acfs",
    "hsp",
    "prop-sp",
    "a-dwrr",
    "aash",
)


def fast_shares(policy, *guests, seconds, counted=True, **host):
    """Share of its running time that each guest spent on the fast core, by name."""
    made = SimHost(topology(**host), guests, counting=Counting(works=counted))
    loop = Loop(made, made, LoopSettings(), load_policy(policy), stopwatch=lambda: 0.0)
    for cycle in range(seconds * 2):
        loop.cycle()
        made.advance((cycle + 1) / 2)
    return {
        g.name: sum(m.run_s[1] for m in meters) / sum(sum(m.run_s) for m in meters)
        for g in guests
        if (meters := made.meters(g.name))
    }


@pytest.mark.parametrize("policy", BY_GAIN)
def test_a_hint_decides_if_nothing_was_measured(policy):
    """The instance with the higher hint, in figures or in words, has more of the fast core."""
    a, b = guest("a", efficiency="1.4"), guest("b", efficiency="high")

    found = fast_shares(policy, a, b, seconds=100, counted=False)

    assert found["b"] > found["a"] + 0.1


@pytest.mark.parametrize("policy", EVENLY)
def test_even_sharing_ignores_hints(policy):
    """The fast core is shared equally, whatever the flavors say."""
    a, b = guest("a", efficiency="low"), guest("b", efficiency="high")

    found = fast_shares(policy, a, b, seconds=40, counted=False)

    assert found["b"] == pytest.approx(found["a"], abs=0.07)


@pytest.mark.parametrize("policy", ["hsp", "acfs"])  # others with speedups take the same ones
def test_a_measurement_overrides_a_hint(policy):
    """A wrong hint matters for a minute or two; then the shares are the same as without it."""
    plain = guest("a", speed=2.0), guest("b", speed=1.1)
    wrong = guest("a", speed=2.0, efficiency="low"), guest("b", speed=1.1, efficiency="3")

    found = fast_shares(policy, *wrong, seconds=600)

    assert found == pytest.approx(fast_shares(policy, *plain, seconds=600), abs=0.12)


def test_counted_instructions_override_a_hint():
    """If instructions are counted, IPC ranks from the first interval on."""
    a = guest("a", speed=2.0, efficiency="low")
    b = guest("b", speed=1.1, efficiency="high")

    found = fast_shares("amp-vm", a, b, seconds=300)

    assert found["a"] > found["b"] + 0.4


@pytest.mark.parametrize("policy", WEIGHTED)
def test_weight_is_priority(policy):
    """Of two equal instances the one with the greater weight has more of the fast core."""
    found = fast_shares(policy, guest("a"), guest("b", weight="3"), seconds=120)

    assert found["b"] > found["a"] + 0.2
