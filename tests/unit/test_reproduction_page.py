"""The page of reproduced figures says what ``amp-nova reproduce`` gives now.

The page is the result of a whole run. What takes a second or two of it is run again here.
"""

import csv
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

import amp_nova
from amp_nova.sim.commands.reproduce import PAPERS, VERDICTS, Found, document, select
from amp_nova.sim.report import rounded

ROOT = Path(amp_nova.__file__).parent.parent
PAGE = ROOT / "doc/source/reference/reproduction.rst"
STALE = "run tools/amp-nova reproduce --format json | python tools/reproduction"
CHEAP = (
    ("teabe2017", "figure 2"),
    ("kwon2011", "figure 4, left"),
    ("kwon2011", "figure 4, right"),
    ("kwon2011", "figure 14"),
    ("saez2015", "model"),
    ("saez2015", "figure 4"),
    ("kumar2009", "figures 1 to 4"),
    ("kumar2009", "figures 5 to 7"),
)


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


@pytest.mark.parametrize(("paper", "figure"), CHEAP)
def test_a_run_gives_what_the_page_says(paper, figure):
    """Every row: published value, ours, difference, verdict, what is assumed, and the cause."""
    tool = runpy.run_path(str(ROOT / "tools/reproduction"))
    ((whole, chosen),) = select(paper, figure)
    texts, expected = notes(paper), []
    for *row, numbers in tables()[f"{chosen.where}: {chosen.title}"]:
        expected.append((*row, [texts[number] for number in numbers.split(", ") if number]))

    found = []
    for row in rounded([document(Found(whole, chosen, row)) for row in chosen.rows()]):
        said = [f"Assumed: {text}." for text in row["assumptions"]]
        said += [f"Cause: {row['cause']}."] if row["cause"] else []
        ours, difference = (tool["value"](row, name) for name in ("ours", "difference"))
        values = (row["quantity"], row["published"], ours, difference, row["verdict"])
        found.append((*values, said))

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
        kinds[name].update(row[4].split(":")[0] for row in rows)

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
                off = row[4] in ("sign only", "not reproduced")
                assert bool(causes & set(row[5].split(", "))) == off, row
        found = found[len(paper.figures) :]
