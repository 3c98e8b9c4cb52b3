"""The drawings of the documentation are rendered from the sources beside them."""

import subprocess
import sys
from pathlib import Path

import pytest

import amp_nova

ROOT = Path(amp_nova.__file__).parent.parent
DRAWINGS = ROOT / "doc/source/drawings"
NAMES = sorted(path.stem for path in DRAWINGS.glob("*.dot"))


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools/drawings", "--check", folder]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def drawing(tmp_path):
    """A folder with one up-to-date drawing, without rendering it: the path of its source."""
    name = NAMES[0]
    for suffix in (".dot", ".svg"):
        (tmp_path / f"{name}{suffix}").write_bytes((DRAWINGS / f"{name}{suffix}").read_bytes())
    return tmp_path / f"{name}.dot"


def test_every_drawing_is_up_to_date():
    """Every SVG in the documentation was rendered from its present source."""
    done = check(DRAWINGS)

    assert NAMES
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(DRAWINGS.iterdir()), ids=lambda path: path.name)
def test_a_drawing_names_no_path_of_a_machine(path):
    """Neither sources nor renderings say where they were made."""
    text = path.read_text()

    assert str(ROOT) not in text
    assert str(Path.home()) + "/" not in text


def test_an_edited_source_is_reported(drawing):
    """The check fails if the source changed after rendering, and names the file."""
    drawing.write_text(drawing.read_text() + "\n// one more line\n")

    done = check(drawing.parent)

    assert done.returncode == 1
    assert f"another version of {drawing.name}" in done.stderr


def test_a_rendering_by_other_means_is_reported(drawing):
    """The check fails for an SVG that does not record its source."""
    drawing.with_suffix(".svg").write_text("<svg></svg>")

    done = check(drawing.parent)

    assert done.returncode == 1
    assert "was not rendered by tools/drawings" in done.stderr


def test_a_missing_rendering_is_reported(drawing):
    """The check fails for a source without an SVG."""
    drawing.with_suffix(".svg").unlink()

    done = check(drawing.parent)

    assert done.returncode == 1
    assert "does not exist" in done.stderr


def test_a_missing_source_is_reported(drawing):
    """The check fails for an SVG without a source."""
    drawing.unlink()

    done = check(drawing.parent)

    assert done.returncode == 1
    assert "has no source" in done.stderr
