"""The page of reproduced figures says what ``amp-nova reproduce`` gives now.

The page is the result of a whole run, with several seeds and varied inputs. Here every figure is
run once, which takes most of a minute.
"""

import csv
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

import amp_nova
from amp_nova_lab.commands.reproduce import PAPERS, VERDICTS, FigureRow, document
from amp_nova_lab.report import rounded

ROOT = Path(amp_nova.__file__).parent.parent
PAGE = ROOT / "doc/source/reference/reproduction.rst"
STALE = "run tools/amp-nova reproduce --format json | python tools/reproduction"
FIGURES = [(paper, figure) for paper in PAPERS.values() for figure in paper.figures]


def tables() -> dict[str, list[list[str]]]:
    """Rows of the tables under each heading; the first has the counts."""
    found = {}
    parts = re.split(r"(?m)^(.+)\n[=-]{4,}\n", PAGE.read_text())
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        body = re.search(r"(?ms)^   :widths: [^\n]*\n\n(.*?)(?=^\S|\Z)", text)
        if body:
            found[heading] = list(csv.reader(line.strip() for line in body[1].split("\n") if line))
    return found


def notes(paper):
    """The notes of a paper by number."""
    texts = re.split(r"(?m)^Notes:$", PAGE.read_text())[1:][list(PAPERS).index(paper)]
    return dict(re.findall(r"(?m)^(\d+)\. (.*)$", texts))


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
    for row, said in zip(rows, headings[f"{figure.where}: {figure.title}"], strict=True):
        what, published, ours, interval, difference, verdict, numbers = said
        if figure.random and interval:
            low, high = map(float, interval.split(" to "))
            slack = 0.01 * max(abs(low), abs(high))
            assert low - slack <= row["ours"] <= high + slack, STALE
            found.append((row["quantity"], row["published"]))
            expected.append((what, published))
            continue
        values = (tool["value"](row, name) for name in ("ours", "difference"))
        found.append((row["quantity"], row["published"], *values, row["verdict"], row["notes"]))
        listed = [texts[paper.name][n].removesuffix(".") for n in numbers.split(", ") if n]
        expected.append((what, published, ours, difference, verdict, listed))

    assert found == expected, STALE


def test_it_has_every_figure():
    """In the order of the command, with what is assumed and left out."""
    wanted = [f"{f.where}: {f.title}" for p in PAPERS.values() for f in p.figures]

    assert list(tables())[1:] == wanted, STALE
    for paper in PAPERS.values():
        for text in paper.left_out:
            assert f"* {text}" in PAGE.read_text(), STALE


def test_it_counts_its_verdicts():
    """Of each paper and of all."""
    counts, *others = tables().values()
    names = [p.name for p in PAPERS.values() for _ in p.figures]
    kinds = {name: Counter() for name in PAPERS}
    for name, rows in zip(names, others, strict=True):
        kinds[name].update(row[5] for row in rows)

    assert set().union(*kinds.values()) == set(VERDICTS)
    assert counts[:-1] == [[n, *(str(found[v]) for v in VERDICTS)] for n, found in kinds.items()]
    total = sum(kinds.values(), Counter())
    assert counts[-1] == ["**all**", *(f"**{total[v]}**" for v in VERDICTS)]


def test_every_row_that_is_off_has_a_cause():
    """In the notes of its paper."""
    found = list(tables().values())[1:]
    for name, paper in PAPERS.items():
        causes = {number for number, text in notes(name).items() if text.startswith("Cause: ")}
        for rows in found[: len(paper.figures)]:
            for row in rows:
                off = row[5] in ("sign only", "not reproduced")
                assert bool(causes & set(row[6].split(", "))) or not off, row
        found = found[len(paper.figures) :]
