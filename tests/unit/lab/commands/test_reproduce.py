# SPDX-License-Identifier: Apache-2.0
"""``amp-nova reproduce`` as a user sees it."""

import pytest

from amp_nova_lab.commands.reproduce import PAPERS, select
from tests.support.tables import cells
from tests.unit.lab.commands.refusals import refused


def test_the_table_counts_verdicts_and_explains_its_notes(amp_nova):
    """After the rows: how many of each kind, what was assumed and what was left out."""
    _, text, _ = amp_nova("reproduce", "kumar2009")

    rows, _, after = text.partition("\n\n")
    counts, notes, left_out = after.split("\n\n")
    assert [row[0] for row in cells(rows)] == ["Paper", *["kumar2009"] * 9]
    assert counts == (
        "0 reproduced, 3 sign only, 2 not reproduced, 4 identity, 0 fitted; "
        "0 reproduced over the whole interval"
    )
    assert {row[-2] for row in cells(rows) if row[-3] == "identity"} == {"reproduced"}
    assert notes.startswith("Notes\n  1  ")
    assert left_out.startswith("Left out\n  kumar2009: ")


@pytest.mark.parametrize(
    ("words", "unknown", "known"),
    [
        (["nobody1999"], "'nobody1999'", "'kwon2011'"),
        (["chen2014", "--figure", "figure 99"], "'figure 99'", "'figure 5'"),
    ],
)
def test_what_is_unknown_is_refused(amp_nova, words, unknown, known):
    """The sentence lists what is known."""
    said = refused(amp_nova("reproduce", *words))

    assert unknown in said
    assert known in said


def test_figures_are_named_once():
    """``--figure NAME`` means one figure of a paper."""
    for name, paper in PAPERS.items():
        names = [figure.name for _, figure in select(name, None)]
        assert len(set(names)) == len(names) == len(paper.figures)
