# SPDX-License-Identifier: Apache-2.0
"""The filters of the role for Ansible: what one host may say about the speed of others."""

import importlib.util
import json

import pytest

from amp_nova.host.calibration import provenance
from tests.support.documented import ROOT

FILE = ROOT / "deploy/roles/amp_nova/filter_plugins/calibrations.py"


@pytest.fixture(scope="module")
def role():
    """The filters by name."""
    spec = importlib.util.spec_from_file_location("calibrations", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FilterModule().filters()


def calibrations(schema=2, **coefficients):
    """A calibration file with a coefficient for each CPU model."""
    found = []
    for model, value in coefficients.items():
        coefficient = {"low": value * 0.99, "value": value, "high": value * 1.01}
        core_types = [{"name": "fast", "coefficient": coefficient}]
        found.append({"provenance": {"cpu_model": model}, "core_types": core_types})
    return json.dumps({"schema": schema, "calibrations": found})


def values(text):
    """The coefficient of each CPU model in a file."""
    return {
        c["provenance"]["cpu_model"]: c["core_types"][0]["coefficient"]["value"]
        for c in json.loads(text)["calibrations"]
    }


def test_a_host_sets_the_speed_of_its_own_cpu_model_alone(role):
    """Whatever its file says of the others."""
    kept = calibrations(a=1.0, b=2.0, c=3.0)
    measured = calibrations(a=9.0, b=2.5, c=9.0, d=9.0)

    merged = role["amp_nova_with_measured"](kept, measured, "b")

    assert values(merged) == {"a": 1.0, "b": 2.5, "c": 3.0}
    assert values(role["amp_nova_with_measured"]("", measured, "b")) == {"b": 2.5}
    assert values(role["amp_nova_with_measured"](calibrations(1, a=1.0), measured, "b")) == {
        "b": 2.5
    }


def test_a_host_is_given_what_is_of_its_own_cpu_model(role):
    """The same text each time; nothing if nobody measured it."""
    kept = role["amp_nova_with_measured"](calibrations(a=1.0), calibrations(b=2.0), "b")

    assert values(role["amp_nova_of_model"](kept, "a")) == {"a": 1.0}
    assert role["amp_nova_of_model"](kept, "c") == role["amp_nova_of_model"]("", "c") == ""


@pytest.mark.parametrize("value", [0.05, 10.1, -1.0, 1e9, float("nan"), float("inf")])
def test_a_coefficient_that_no_core_has_stops_the_play(role, value):
    """It would become what every host of the model has booked and free."""
    with pytest.raises(ValueError, match=r"0\.1 to 10 is possible|not JSON compliant"):
        role["amp_nova_with_measured"](calibrations(a=1.0), calibrations(b=value), "b")


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "{}", calibrations(a=2.0), calibrations(b=2.0).replace("core_t", "x")]
)
def test_what_is_no_calibration_of_this_host_stops_the_play(role, text):
    """Nothing of it is kept."""
    with pytest.raises((ValueError, LookupError, TypeError)):
        role["amp_nova_with_measured"](calibrations(a=1.0), text, "b")


@pytest.mark.parametrize(
    "cpuinfo",
    [
        "processor : 0\nmodel name\t: Some CPU @ 2 GHz\n\nprocessor : 1\nmodel name\t: A 7 \n\n",
        "processor : 0\ncpu\t\t: POWER9, altivec supported\nclock : 1\n\n",
        """processor : 0\nCPU implementer : 0x41\nCPU part : 0xd03\n
processor : 1\nCPU implementer : 0x41\nCPU part : 0xd09\n\n""",
    ],
    ids=["x86", "power", "arm"],
)
def test_the_cpu_model_is_that_of_the_calibration(role, tmp_path, cpuinfo):
    """As ``amp-nova calibrate`` writes it."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)

    assert role["amp_nova_cpu_model"](cpuinfo) == provenance.machine(str(tmp_path))["cpu_model"]


def test_a_cpu_model_is_no_template(role):
    """Ansible would run it on the deployment host."""
    model = role["amp_nova_cpu_model"]("model name : {{ lookup('pipe', 'id') }} {% x %}\n")

    assert not set("{}") & set(model)
