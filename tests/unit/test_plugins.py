# SPDX-License-Identifier: Apache-2.0
"""Finding policies by name."""

import dataclasses

import pytest

from amp_nova import plugins
from amp_nova.exceptions import ConfigInvalid


@dataclasses.dataclass(frozen=True)
class Adjustable:
    """A policy with parameters."""

    name: str = "adjustable"
    fair_ratio: float = 0.5
    rounds: int = 1
    strict: bool = False

    def __post_init__(self):
        if self.fair_ratio > 1:
            raise ValueError("fair_ratio is at most 1")


@pytest.fixture
def installed(monkeypatch):
    """One policy with parameters and two that cannot be imported."""
    missing = ModuleNotFoundError("No module named 'amp_nova_lab'", name="amp_nova_lab")
    broken = ImportError("no module named numpy")
    found = {"adjustable": Adjustable, "broken": broken, "separate": missing}
    monkeypatch.setattr(plugins, "_factory", found.get)
    monkeypatch.setattr(plugins, "policies", lambda: tuple(found))


def test_the_policies_of_the_package_are_found():
    """Entry points lead to the policies, which know their names."""
    for name in ("none", "credit", "pinned"):
        assert name in plugins.policies()
        assert plugins.load_policy(name).name == name


def test_parameters_are_read_from_text(installed):
    """Text becomes what the policy's field wants; other values are taken as they are."""
    made = plugins.load_policy("adjustable", fair_ratio="0.25", rounds="3", strict="True")

    assert made == Adjustable(fair_ratio=0.25, rounds=3, strict=True)
    assert plugins.load_policy("adjustable", fair_ratio=0.75) == Adjustable(fair_ratio=0.75)


@pytest.mark.parametrize(
    ("name", "params", "error", "said"),
    [
        (
            "nonesuch",
            {},
            ConfigInvalid,
            "no policy 'nonesuch' is installed; choose one of adjustable",
        ),
        ("broken", {}, ConfigInvalid, "'broken' cannot be loaded: no module named numpy"),
        ("separate", {}, ConfigInvalid, "install python3-amp-nova-lab"),
        ("adjustable", {"fairness": "1"}, ConfigInvalid, "it has fair_ratio, rounds, strict"),
        ("adjustable", {"name": "x"}, ConfigInvalid, "no parameter 'name'"),
        ("adjustable", {"rounds": "1.5"}, ConfigInvalid, "rounds='1.5' is not of type int"),
        ("adjustable", {"strict": "maybe"}, ConfigInvalid, "strict='maybe' is not of type bool"),
        ("adjustable", {"fair_ratio": "2"}, ConfigInvalid, "fair_ratio is at most 1"),
    ],
)
def test_what_cannot_be_had_is_said_in_a_sentence(installed, name, params, error, said):
    """An unknown policy, parameter or value names what there is instead."""
    with pytest.raises(error) as refused:
        plugins.load_policy(name, **params)

    assert said in str(refused.value)


def test_a_policy_without_parameters_says_so():
    """``credit`` cannot be adjusted."""
    with pytest.raises(ConfigInvalid, match="it has none"):
        plugins.load_policy("credit", x="1")
