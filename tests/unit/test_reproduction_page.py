"""The page of reproduced figures has the shape that ``amp-nova reproduce`` has now."""

import csv
import re
from collections import Counter
from pathlib import Path

import amp_nova
from amp_nova.sim.commands.reproduce import VERDICTS
from amp_nova.sim.reproduce.papers import PAPERS

PAGE = Path(amp_nova.__file__).parent.parent / "doc/source/reference/reproduction.rst"
STALE = "run tools/amp-nova reproduce --format json | python tools/reproduction"


def tables() -> dict[str, list[list[str]]]:
    """Rows of the tables under each heading; the first has the counts."""
    found = {}
    parts = re.split(r"(?m)^(.+)\n[=-]{4,}\n", PAGE.read_text())
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        body = re.search(r"(?ms)^   :widths: [^\n]*\n\n(.*?)(?=^\S|\Z)", text)
        if body:
            found[heading] = list(csv.reader(line.strip() for line in body[1].split("\n") if line))
    return found


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
    sections = re.split(r"(?m)^Notes:$", PAGE.read_text())[1:]
    for paper, notes in zip(PAPERS.values(), sections, strict=True):
        causes = set(re.findall(r"(?m)^(\d+)\. Cause: ", notes))
        for rows in found[: len(paper.figures)]:
            for row in rows:
                off = row[4] in ("sign only", "not reproduced")
                assert bool(causes & set(row[5].split(", "))) == off, row
        found = found[len(paper.figures) :]
