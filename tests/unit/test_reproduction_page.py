# SPDX-License-Identifier: Apache-2.0
"""The page of reproduced figures and its tables say what ``amp-nova reproduce`` gives now.

They are the result of a whole run, with several seeds and varied inputs. Here every figure is
run once, and once with each wrong policy or input, which takes most of a minute.
"""

import csv
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import amp_nova
from amp_nova_lab.commands.reproduce import PAPERS, FigureRow, document
from amp_nova_lab.report import rounded

ROOT = Path(amp_nova.__file__).parent.parent
PAGE = ROOT / "doc/source/reference/reproduction.rst"
STALE = "run tools/amp-nova reproduce --format json | python tools/reproduction"
FIGURES = [(paper, figure) for paper in PAPERS.values() for figure in paper.figures]


def table(name: str) -> list[list[str]]:
    """The rows of a file that the page shows, without the heading."""
    assert f"   :file: reproduction/{name}.csv\n" in PAGE.read_text(), STALE
    with (PAGE.with_suffix("") / f"{name}.csv").open(newline="") as file:
        return list(csv.reader(file))[1:]


def tables() -> dict[str, list[list[str]]]:
    """Rows of every figure, without its name."""
    found = {}
    for paper in PAPERS:
        for figure, *row in table(paper):
            found.setdefault((paper, figure), []).append(row)
    return found


def notes(paper):
    """The notes of a paper by number."""
    return dict(table(f"{paper}-notes"))


@pytest.fixture(scope="module")
def page():
    """The tables of the page, and the notes of each paper."""
    return tables(), {name: notes(name) for name in PAPERS}


@pytest.mark.parametrize(("paper", "figure"), FIGURES, ids=lambda each: each.name)
def test_a_run_gives_what_the_page_says(page, paper, figure):
    """Every row; of a random one only that it is within the interval of the page."""
    tool = runpy.run_path(str(ROOT / "tools/reproduction"))
    headings, texts = page
    found, expected = [], []
    rows = rounded([document(FigureRow(paper, figure, row)) for row in figure.once()])
    for row, said in zip(
        rows, headings[paper.name, f"{figure.where}: {figure.title}"], strict=True
    ):
        what, published, ours, interval, difference, verdict, if_wrong, numbers = said
        if figure.random and interval:
            low, high = map(float, interval.split(" to "))
            slack = 0.01 * max(abs(low), abs(high))
            assert low - slack <= row["ours"] <= high + slack, STALE
            found.append((row["quantity"], row["published"]))
            expected.append((what, published))
            continue
        values = (tool["value"](row, name) for name in ("ours", "difference"))
        verdicts = row["verdict"], row["if_wrong"]
        found.append((row["quantity"], row["published"], *values, *verdicts, row["notes"]))
        listed = [texts[paper.name][n].removesuffix(".") for n in numbers.split(", ") if n]
        expected.append((what, published, ours, difference, verdict, if_wrong, listed))

    assert found == expected, STALE


def test_it_has_every_figure():
    """In the order of the command, with what is assumed and left out."""
    wanted = [(p.name, f"{f.where}: {f.title}") for p in PAPERS.values() for f in p.figures]

    assert list(tables()) == wanted, STALE
    for paper in PAPERS.values():
        for text in paper.left_out:
            assert f"* {text}" in PAGE.read_text(), STALE


def test_the_tool_writes_the_page_and_its_files(tmp_path):
    """From the rows of the command, with nothing from elsewhere."""
    paper = PAPERS["kumar2009"]  # whose figures take no time
    rows = [document(FigureRow(paper, f, row)) for f in paper.figures for row in f.once()]
    command = [sys.executable, ROOT / "tools/reproduction", tmp_path / "page.rst"]
    subprocess.run(command, input=json.dumps(rows), text=True, check=True)

    page = (tmp_path / "page.rst").read_text()
    files = {f"page/{path.name}" for path in (tmp_path / "page").iterdir()}
    assert set(re.findall(r"(?m)^   :file: (.*)$", page)) == files
    assert len((tmp_path / "page/kumar2009.csv").read_text().splitlines()) > 1
