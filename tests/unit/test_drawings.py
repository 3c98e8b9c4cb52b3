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


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda dot: dot.write_text(dot.read_text() + "\n// one more\n"), "another version of "),
        (lambda dot: dot.with_suffix(".svg").write_text("<svg></svg>"), "was not rendered by "),
        (lambda dot: dot.with_suffix(".svg").unlink(), "does not exist"),
        (lambda dot: dot.unlink(), "has no source"),
    ],
    ids=["edited source", "rendered by other means", "no rendering", "no source"],
)
def test_a_drawing_that_is_not_up_to_date_is_reported(drawing, spoil, said):
    """The check fails and says what is wrong with which file."""
    spoil(drawing)

    done = check(drawing.parent)

    assert done.returncode == 1
    assert said in done.stderr
    assert drawing.stem in done.stderr
