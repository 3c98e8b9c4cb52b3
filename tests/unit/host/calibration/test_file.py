"""The calibration file, and what is believed of it."""

import dataclasses
import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from amp_nova.exceptions import CalibrationInvalid
from amp_nova.hardware import calibration
from amp_nova.hardware.calibration import Calibration, Reference
from amp_nova.hardware.operator_types import SOURCE as CONFIGURED
from amp_nova.host.calibration import measure
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests.calibrations import INTEGER, machine_files, sample, topology

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def root(tmp_path):
    return machine_files(tmp_path / "root")


def build(root, reference="slow", foreign=None, pcpus=None, **values) -> Calibration:
    """A calibration of the machine below root: fast is twice as fast as slow."""
    samples = tuple(
        sample(name, ops, number, ips=ops * 1e6)
        for number in range(6)
        for name, ops in (("slow", 1000.0), ("fast", 2000.0), ("other", 500.0))
    )
    pcpus = pcpus or {"slow": (1,), "fast": (0,)}
    results = calibration.summarise(samples, pcpus, (INTEGER,), Reference(reference, samples))
    made = measure.provenance("0.15.06", 1, 6, False, str(root), NOW)
    fields = {
        "schema": calibration.SCHEMA,
        "reference": reference,
        "reference_host": foreign,
        "provenance": made,
        "kernels": (INTEGER,),
        "core_types": results,
        "nominal_ips_missing": None,
        "warnings": (),
        "samples": samples,
    }
    return Calibration(**(fields | values))


@pytest.fixture
def file(tmp_path, root):
    path = tmp_path / "calibration.json"
    measure.write(path, build(root))
    return path


def test_what_is_written_is_read_back(tmp_path, root):
    """The file holds everything: figures, provenance and the single runs."""
    made = build(root)
    measure.write(tmp_path / "new" / "c.json", made)

    assert measure.read(tmp_path / "new" / "c.json") == made
    assert (tmp_path / "new" / "c.json").stat().st_mode & 0o777 == 0o644


def test_provenance_says_what_the_machine_was(root):
    """Model, microcode, governor, turbo, SMT and kernel are those of the machine."""
    made = build(root).provenance

    assert made.cpu_model == "Model A"
    assert made.microcode == "0x1"
    assert made.governor == "performance"
    assert made.turbo == "off"
    assert made.smt == "off"
    assert made.kernel_release == "6.1.0"
    assert made.date == "2026-11-21T00:00:00+00:00"


def test_arm_has_a_model_too(tmp_path):
    """A CPU without a model name is named by implementer and part, all of them."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor: 0\nCPU implementer: 0x41\nCPU part: 0xd0b\n\n"
        "processor: 1\nCPU implementer: 0x41\nCPU part: 0xd05\n"
    )

    assert measure.machine(str(tmp_path))["cpu_model"] == "0x41 0xd05 + 0xd0b"


def test_the_old_file_survives_a_write_that_fails(file, root, monkeypatch):
    """A disk that is full leaves the old calibration, and nothing beside it."""
    before = file.read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CalibrationInvalid, match="No space left on device"):
        measure.write(file, build(root))

    assert file.read_text() == before
    assert sorted(p.name for p in file.parent.iterdir()) == ["calibration.json", "root"]


def test_a_symbolic_link_stays_one(tmp_path, file, root):
    """Who links the file elsewhere gets the new one there."""
    link = tmp_path / "link.json"
    link.symlink_to(file)
    measure.write(link, build(root, warnings=("new",)))

    assert link.is_symlink()
    assert measure.read(file).warnings == ("new",)


def test_checking_leaves_no_trace(file):
    """Whether a file can be written is tried beside it, and cleaned up."""
    before = file.read_text()
    measure.check_writable(file)

    assert file.read_text() == before
    assert sorted(p.name for p in file.parent.iterdir()) == ["calibration.json", "root"]


@pytest.mark.parametrize("place", ["folder", "calibration.json/below"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, file, place):
    """A folder, or a file where a folder has to be, is refused with the way out."""
    (tmp_path / "folder").mkdir()

    with pytest.raises(CalibrationInvalid, match=rf"{place}: .*--output"):
        measure.check_writable(tmp_path / place)


def damage(file, change):
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def test_a_core_type_that_sleeps_whole_does_not_void_the_calibration(tmp_path, root):
    """With every slow core switched off, a fast core is still worth what was measured."""
    path = tmp_path / "c.json"
    measure.write(path, build(root))
    only = Topology((CoreType("fast", 1.0),), (PCpu(0, "fast"),), "fast", "test", offline=(1,))

    found = measure.apply(only, path, str(root), NOW)

    assert found.core_type("fast").coefficient == pytest.approx(2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.pop("core_types"), "'core_types' is missing"),
        (lambda d: d.update(core_types=[]), "'core_types' is empty"),
        (lambda d: d.update(core_types={}), "'core_types' is not a list"),
        (lambda d: d.update(provenance=3), "'provenance' is not an object"),
        (lambda d: d["provenance"].update(date="once"), "'provenance.date' is 'once'"),
        (lambda d: d["provenance"].update(run_s=True), "'provenance.run_s' is True"),
        (
            lambda d: d["core_types"][0]["coefficient"].update(value="2"),
            r"'core_types\[0\].coefficient.value' is '2', not of type float",
        ),
        (
            lambda d: d["core_types"][1]["coefficient"].update(value=-2),
            "'coefficient' of core type 'fast' is -2.0 between",
        ),
        (lambda d: d["core_types"][0]["nominal_ips"].update(low=0), "'nominal_ips' of core type"),
        (lambda d: d["samples"][0].update(cpu_s=0), "a sample of core type 'slow'"),
        (lambda d: d.update(reference="x"), "'reference' is 'x', none of its core types"),
        (lambda d: d.update(schema=7), "format 7 where this amp-nova reads 1"),
    ],
)
def test_a_damaged_file_names_field_and_remedy(file, change, said):
    """Every kind of damage is one sentence with file, field and what to do."""
    damage(file, change)

    with pytest.raises(CalibrationInvalid, match=said) as caught:
        measure.read(file)
    assert str(file) in str(caught.value)
    assert "run 'amp-nova calibrate' again" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "3", '{"schema": NaN}', "[" * 100000, "\xff"]
)
def test_garbage_is_no_calibration(tmp_path, text):
    """What is no JSON object of ours is refused with file and remedy, never a traceback."""
    path = tmp_path / "c.json"
    path.write_text(text, encoding="latin-1")

    with pytest.raises(CalibrationInvalid, match=r"c\.json .*amp-nova calibrate' again"):
        measure.apply(topology(), path, str(tmp_path))


def test_a_matching_calibration_is_used(file, root):
    """Coefficients and nominal Ips are set, and the source says where from."""
    found = measure.apply(topology(), file, str(root), NOW)

    assert found.core_type("fast").coefficient == pytest.approx(2)
    assert found.core_type("fast").coefficient_source == "calibration"
    assert found.core_type("fast").nominal_ips == pytest.approx(2e9)
    assert found.core_type("slow").coefficient == 1
    assert found.warnings == ()


@pytest.mark.parametrize("path", ["", "nothing.json"])
def test_without_a_file_nothing_changes(tmp_path, path):
    """No calibration is no error: the topology is as detected."""
    mine = topology()

    assert measure.apply(mine, path and tmp_path / path, str(tmp_path)) is mine


def test_a_configured_coefficient_stays(file, root):
    """What the operator configured wins over what was measured."""
    mine = topology()
    slow, fast = mine.core_types
    fast = dataclasses.replace(fast, coefficient=3.0, coefficient_source=CONFIGURED)
    found = measure.apply(dataclasses.replace(mine, core_types=(slow, fast)), file, str(root), NOW)

    assert found.core_type("fast").coefficient == 3.0


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"slow": (1,), "quick": (0,)}, "core types slow, fast, this machine has slow, quick"),
        ({"slow": (1, 2), "fast": (0,)}, "'slow' was pCPUs 1 and is 1-2"),
        ({"slow": (0,), "fast": (1,)}, "'slow' was pCPUs 1 and is 0"),
    ],
)
def test_a_calibration_of_other_core_types_is_not_used(file, root, types, said):
    """Types that differ in name or pCPUs make it another machine's, with a warning."""
    found = measure.apply(topology(types), file, str(root), NOW)

    assert {t.coefficient for t in found.core_types} == {None}
    (warning,) = found.warnings
    assert said in warning
    assert "not used" in warning


def test_a_calibration_of_another_cpu_model_is_not_used(tmp_path, file):
    """A file copied from another model changes nothing but a warning."""
    other = machine_files(tmp_path / "other", model="Model B")
    found = measure.apply(topology(), file, str(other), NOW)

    assert found.core_type("fast").coefficient is None
    assert "it is of CPU model 'Model A', this machine is 'Model B'" in found.warnings[0]


def test_an_offline_core_is_no_other_machine(tmp_path, root):
    """Cores that are switched off to save power do not void the calibration."""
    path = tmp_path / "c.json"
    measure.write(path, build(root, pcpus={"slow": (1, 2), "fast": (0,)}))
    found = measure.apply(topology(offline=(2,)), path, str(root), NOW)

    assert found.core_type("fast").coefficient == pytest.approx(2)
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"microcode": "0x2"}, "microcode was '0x1' and is '0x2'"),
        ({"governor": "powersave"}, "governor was 'performance' and is 'powersave'"),
        ({"release": "6.2.0"}, "kernel release was '6.1.0' and is '6.2.0'"),
    ],
)
def test_a_change_of_the_machine_is_a_warning(tmp_path, file, change, said):
    """The figures are used, and one sentence says what has changed and what to do."""
    changed = machine_files(tmp_path / "changed", **change)
    found = measure.apply(topology(), file, str(changed), NOW)

    assert found.core_type("fast").coefficient == pytest.approx(2)
    (warning,) = found.warnings
    assert said in warning
    assert "run 'amp-nova calibrate' again" in warning


@pytest.mark.parametrize(("days", "warned"), [(180, False), (181, True), (-3, False)])
def test_an_old_calibration_is_a_warning(file, root, days, warned):
    """Half a year is good; after that it says its age."""
    found = measure.apply(topology(), file, str(root), NOW + timedelta(days=days))

    assert any("181 days old" in w for w in found.warnings) == warned


def test_the_measured_reference_wins_over_the_detected_one(file, root):
    """A topology that took the wrong type for the slowest is put right, with a warning."""
    wrong = topology({"fast": (0,), "slow": (1,)})
    found = measure.apply(wrong, file, str(root), NOW)

    assert [t.name for t in found.core_types] == ["slow", "fast"]
    assert found.reference == "slow"
    assert "[topology] reference = slow" in found.warnings[0]


def test_a_calibration_relative_to_another_reference_core_is_not_used(file, root):
    """Where the cloud's reference core is elsewhere, figures over a local one would be wrong."""
    found = measure.apply(topology(reference="old"), file, str(root), NOW)

    assert found.core_type("fast").coefficient is None
    assert "relative to 'slow', not to 'old'" in found.warnings[0]


@pytest.mark.parametrize("wanted", ["slow", "other"])
def test_a_calibration_over_a_foreign_reference_is_used(tmp_path, root, wanted):
    """Coefficients over another host's core hold, and no type of this host is the reference."""
    path = tmp_path / "c.json"
    measure.write(path, build(root, reference="other", foreign="host-a"))
    found = measure.apply(topology(reference=wanted), path, str(root), NOW)

    assert found.reference == "other"
    assert [t.coefficient for t in found.core_types] == pytest.approx([2, 4])
    assert found.warnings == ()


def test_what_busy_siblings_cost_is_taken_over(tmp_path, root):
    """By core type, where it was measured."""
    made = build(root)
    replace = dataclasses.replace
    factor = replace(made.core_types[0].coefficient, value=0.62, low=0.6, high=0.65)
    fast = replace(made.core_types[1], smt_busy_factor=factor)
    measure.write(tmp_path / "c.json", replace(made, core_types=(made.core_types[0], fast)))

    found = measure.apply(topology(), tmp_path / "c.json", str(root), NOW)

    assert [t.smt_busy_factor for t in found.core_types] == [None, 0.62]
