# SPDX-License-Identifier: Apache-2.0
"""The calibration file: reading, checking and writing."""

import json
import os

import pytest

from amp_nova.exceptions import CalibrationInvalid
from amp_nova.host.calibration.file import check_writable, read, write
from tests.support.calibrations import build, machine_files


def test_what_is_written_is_read_back(tmp_path, root):
    """The results and the provenance of every CPU model."""
    made = (build(root), build(machine_files(tmp_path / "other", model="Model B")))
    write(tmp_path / "new" / "c.json", made)

    assert read(tmp_path / "new" / "c.json") == made
    assert (tmp_path / "new" / "c.json").stat().st_mode & 0o777 == 0o644


def test_a_file_of_an_earlier_version_has_no_cost_of_a_miss(file):
    """It is read as before."""
    document = json.loads(file.read_text())
    for core_type in document["calibrations"][0]["core_types"]:
        del core_type["miss_cycles"]
    file.write_text(json.dumps(document))

    assert {t.miss_cycles for t in read(file)[0].core_types} == {None}


def test_the_old_file_survives_a_failed_write(file, root, monkeypatch):
    """A full disk leaves the old calibration, and no temporary file."""
    before = file.read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CalibrationInvalid, match="No space left on device"):
        write(file, [build(root)])

    assert file.read_text() == before
    assert sorted(p.name for p in file.parent.iterdir()) == ["calibration.json", "root"]


def test_a_symbolic_link_stays_one(tmp_path, file, root):
    """The file that it leads to is replaced."""
    link = tmp_path / "link.json"
    link.symlink_to(file)
    write(link, [build(root, warnings=("new",))])

    assert link.is_symlink()
    assert read(file)[0].warnings == ("new",)


def test_checking_leaves_no_trace(file):
    """The check leaves the old file and no temporary file."""
    before = file.read_text()
    check_writable(file)

    assert file.read_text() == before
    assert sorted(p.name for p in file.parent.iterdir()) == ["calibration.json", "root"]


@pytest.mark.parametrize("place", ["folder", "calibration.json/below"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, file, place):
    """A directory, or a file in place of a directory, is refused with a remedy."""
    (tmp_path / "folder").mkdir()

    with pytest.raises(CalibrationInvalid, match=rf"{place}: .*--output"):
        check_writable(tmp_path / place)


def damage(file, change):
    data = json.loads(file.read_text())
    change(data["calibrations"][0])
    file.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.pop("core_types"), "missing required field `core_types`"),
        (lambda d: d.update(core_types=[]), "'core_types' is empty"),
        (
            lambda d: d.update(core_types={}),
            r"Expected `array`, got `object` - at `\$.calibrations\[.+\].core_types`",
        ),
        (lambda d: d["provenance"].update(date="once"), "'provenance.date' is 'once'"),
        (
            lambda d: d["core_types"][0]["coefficient"].update(value="2"),
            r"got `str` - at `\$.calibrations\[.+\].core_types\[.+\].coefficient.value`",
        ),
        (
            lambda d: d["core_types"][1]["coefficient"].update(value=-2),
            "'coefficient' of core type 'fast' is -2.0 between",
        ),
        (lambda d: d["core_types"][0]["nominal_ips"].update(low=0), "'nominal_ips' of core type"),
        (lambda d: d["core_types"][0]["ops_per_cpu_s"].update(low=0), "'ops_per_cpu_s' of core"),
        (lambda d: d.update(reference="x"), "'reference' is 'x', not one of its core types"),
    ],
)
def test_a_damaged_file_names_field_and_remedy(file, change, said):
    """One sentence for every kind of damage."""
    damage(file, change)

    with pytest.raises(CalibrationInvalid, match=said) as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert "run 'amp-nova calibrate' again" in str(caught.value)


def test_another_format_is_refused(file):
    """The message names both formats."""
    file.write_text('{"schema": 7}')

    with pytest.raises(CalibrationInvalid, match="format 7, but this amp-nova reads 2"):
        read(file)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": NaN}', "[" * 100000, "\xff", '{"schema": 2, "calibrations": []}']
)
def test_garbage_is_not_a_calibration(tmp_path, text):
    """The message names file and remedy."""
    path = tmp_path / "c.json"
    path.write_text(text, encoding="latin-1")

    with pytest.raises(CalibrationInvalid, match=r"c\.json .*amp-nova calibrate' again"):
        read(path)
