# SPDX-License-Identifier: Apache-2.0
"""Whether a calibration is of this machine, and what it changes."""

import dataclasses
from datetime import timedelta

import pytest

from amp_nova.hardware.calibration import Estimate
from amp_nova.hardware.operator_types import SOURCE as CONFIGURED
from amp_nova.host.calibration.file import write
from amp_nova.host.calibration.provenance import apply
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests.support.calibrations import NOW, build, machine_files, topology


def test_provenance_describes_the_machine(root):
    """CPU model, microcode, governor, turbo, SMT and kernel."""
    made = build(root).provenance

    assert (made.cpu_model, made.microcode, made.kernel_release) == ("Model A", "0x1", "6.1.0")
    assert (made.governor, made.turbo, made.smt) == ("performance", "off", "off")
    assert made.date == "2026-11-21T00:00:00+00:00"


def test_a_matching_calibration_is_used(file, root):
    """Coefficients, nominal Ips and the source are set."""
    found = apply(topology(), file, str(root), NOW)

    assert found.core_type("fast").coefficient == pytest.approx(2)
    assert found.core_type("fast").coefficient_source == "calibration"
    assert found.core_type("fast").nominal_ips == pytest.approx(2e9)
    assert found.core_type("slow").coefficient == 1
    assert found.warnings == ()


def test_a_configured_coefficient_stays(file, root):
    """The configuration overrides the measurement."""
    mine = topology()
    slow, fast = mine.core_types
    fast = dataclasses.replace(fast, coefficient=3.0, coefficient_source=CONFIGURED)
    found = apply(dataclasses.replace(mine, core_types=(slow, fast)), file, str(root), NOW)

    assert found.core_type("fast").coefficient == 3.0


@pytest.mark.parametrize(
    ("here", "model", "said"),
    [
        (
            topology({"slow": (1,), "quick": (0,)}),
            "Model A",
            "it has core types slow, fast, this machine has slow, quick",
        ),
        (topology({"slow": (1, 2), "fast": (0,)}), "Model A", "'slow' was pCPUs 1 and is 1-2"),
        (topology({"slow": (0,), "fast": (1,)}), "Model A", "'slow' was pCPUs 1 and is 0"),
        (topology(), "Model B", "made on CPU model 'Model A', but this is 'Model B'"),
        (topology(reference="old"), "Model A", "it is relative to 'slow', not to 'old'"),
    ],
)
def test_a_calibration_of_another_machine_is_not_used(tmp_path, file, here, model, said):
    """Its core types, their pCPUs, the model or the reference core differ: a warning says so."""
    found = apply(here, file, str(machine_files(tmp_path / "other", model=model)), NOW)

    assert {t.coefficient for t in found.core_types} == {None}
    (warning,) = found.warnings
    assert "not used" in warning
    assert said in warning


def test_a_host_uses_the_calibration_of_its_cpu_model(tmp_path, root):
    """A file for several CPU models serves hosts of each; a host of another model says so."""
    path, other = tmp_path / "c.json", machine_files(tmp_path / "other", model="Model B")
    write(path, [build(root), build(other, reference="other", foreign="host-a")])

    for host, coefficient in (root, 2), (other, 4):
        found = apply(topology(), path, str(host), NOW)
        assert found.core_type("fast").coefficient == pytest.approx(coefficient)
    third = machine_files(tmp_path / "third", model="Model C")
    (warning,) = apply(topology(), path, str(third), NOW).warnings
    assert "on CPU model 'Model A', 'Model B', but this is 'Model C'" in warning


ONLY_FAST = Topology((CoreType("fast", 1.0),), (PCpu(0, "fast"),), "fast", "test", offline=(1, 2))


@pytest.mark.parametrize("here", [ONLY_FAST, topology(offline=(2,))], ids=["a type", "a core"])
def test_offline_cores_do_not_void_the_calibration(tmp_path, root, here):
    """Cores may be taken offline to save power."""
    path = tmp_path / "c.json"
    write(path, [build(root, pcpus={"slow": (1, 2), "fast": (0,)})])

    found = apply(here, path, str(root), NOW)

    assert found.core_type("fast").coefficient == pytest.approx(2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"microcode": "0x2"}, "microcode was '0x1' and is '0x2'"),
        ({"governor": "powersave"}, "governor was 'performance' and is 'powersave'"),
        ({"governor": ""}, "governor was 'performance' and is unknown"),
        ({"release": "6.2.0"}, "kernel release was '6.1.0' and is '6.2.0'"),
    ],
)
def test_a_change_of_the_machine_is_a_warning(tmp_path, file, change, said):
    """The values are used, and one sentence says what has changed and what to do."""
    changed = machine_files(tmp_path / "changed", **change)
    found = apply(topology(), file, str(changed), NOW)

    assert found.core_type("fast").coefficient == pytest.approx(2)
    (warning,) = found.warnings
    assert said in warning
    assert "run 'amp-nova calibrate' again" in warning


@pytest.mark.parametrize(("days", "warned"), [(180, False), (181, True), (-3, False)])
def test_an_old_calibration_is_a_warning(file, root, days, warned):
    """After half a year the warning says its age."""
    found = apply(topology(), file, str(root), NOW + timedelta(days=days))

    assert any("181 days old" in w for w in found.warnings) == warned


def test_the_measured_reference_replaces_the_detected_one(file, root):
    """If detection mistook another type for the slowest, a warning says so."""
    wrong = topology({"fast": (0,), "slow": (1,)})
    found = apply(wrong, file, str(root), NOW)

    assert [t.name for t in found.core_types] == ["slow", "fast"]
    assert found.reference == "slow"
    assert "[topology] reference = slow" in found.warnings[0]


def test_what_was_measured_of_a_core_type_is_set(tmp_path, root):
    """The factor of busy siblings, the clock and the cost of a miss, for each where it is known."""
    made, mine = build(root), topology()
    slow, fast = made.core_types
    measured = {"smt_busy_factor": 0.62, "clock_hz": 3e9, "miss_cycles": 150.0}
    known = {name: Estimate(value, value, value, 1.0) for name, value in measured.items()}
    fast = dataclasses.replace(fast, **known)
    write(tmp_path / "c.json", [dataclasses.replace(made, core_types=(slow, fast))])
    types = tuple(dataclasses.replace(t, clock_hz=2e9) for t in mine.core_types)

    found = apply(
        dataclasses.replace(mine, core_types=types), tmp_path / "c.json", str(root), NOW
    ).core_types

    assert [t.smt_busy_factor for t in found] == [None, 0.62]
    assert [(t.clock_hz, t.clock_calibrated) for t in found] == [(2e9, False), (3e9, True)]
    assert [t.miss_cycles for t in found] == [None, 150.0]
