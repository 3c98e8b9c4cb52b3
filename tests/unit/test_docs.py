"""What the documentation says about the repository is true."""

import re
from pathlib import Path

import pytest

import amp_nova

ROOT = Path(amp_nova.__file__).parent.parent
PAGES = [*ROOT.glob("*.rst"), *sorted((ROOT / "doc/source").rglob("*.rst"))]
TEST = re.compile(r"``(?:[\w/]*/)?(test_\w+\.py)::(test_\w+)``")


def cited() -> list[tuple[str, str]]:
    return sorted({match for page in PAGES for match in TEST.findall(page.read_text())})


@pytest.mark.parametrize(("file", "name"), cited())
def test_a_cited_test_exists(file, name):
    """Claims rest on tests; a renamed test must not leave one behind."""
    files = list((ROOT / "tests").rglob(file))

    assert any(f"def {name}(" in path.read_text() for path in files)
