# SPDX-License-Identifier: Apache-2.0
"""The contract as scenarios: NAME.yaml is run, NAME.expect.yaml has the expected result.

In an expectation a number is matched to the sixth digit, ``[low, high]`` is an inclusive range and
``null`` means that there is no such number; ``every`` holds for all VMs.
"""

import json
from pathlib import Path

import pytest
import yaml

from amp_nova.cmd.command import as_json
from amp_nova_lab import report
from amp_nova_lab.commands import inputs
from amp_nova_lab.run import run

HERE = Path(__file__).parent
NAMES = sorted(p.name.removesuffix(".expect.yaml") for p in HERE.glob("*.expect.yaml"))


def holds(expected, found):
    if isinstance(expected, list):
        low, high = expected
        return found is not None and low <= found <= high
    if isinstance(expected, int | float):
        return found is not None and abs(found - expected) < 1.5e-6
    return found == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_contract(name):
    """The result matches the expectation beside the scenario."""
    expected = yaml.safe_load((HERE / f"{name}.expect.yaml").read_text())
    wanted = {vm: {**expected.get("every", {}), **own} for vm, own in expected["vms"].items()}

    result = json.loads(as_json(report.rounded(run(inputs.load(HERE / f"{name}.yaml")))))

    assert set(expected["vms"]) == set(result["vms"])
    broken = [
        f"{who}: {key} is {found[key]}, expected {value}"
        for who, keys, found in [
            ("host", expected.get("host", {}), result),
            *((vm, own, result["vms"][vm]) for vm, own in wanted.items()),
        ]
        for key, value in keys.items()
        if not holds(value, found[key])
    ]
    assert not broken, f"{expected['says']} But:\n" + "\n".join(broken)


def test_every_scenario_has_an_expectation():
    """No scenario runs without being checked."""
    assert {p.stem for p in HERE.glob("*.yaml") if ".expect" not in p.name} == set(NAMES)
