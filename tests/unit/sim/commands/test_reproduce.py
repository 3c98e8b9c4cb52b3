"""``amp-nova reproduce`` as a user sees it."""

import json
from pathlib import Path

import pytest

import amp_nova
from amp_nova.cmd import cli
from tests.tables import cells

PAGE = Path(amp_nova.__file__).parent.parent / "doc/source/reference/reproduction.rst"
CHEAP = {
    "teabe2017": "figure 2",
    "kwon2011": "figure 14",
    "saez2015": "figure 4",
    "chen2014": "figure 6",
    "kumar2009": "figures 1 to 4",
}
"""A figure of each paper that takes a second or two."""


def amp_nova_reproduce(capsys, *arguments):
    """Exit status, standard output, standard error."""
    try:
        status = cli.main(["reproduce", *arguments])
    except SystemExit as exc:
        status = exc.code
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(("paper", "figure"), CHEAP.items())
def test_a_figure_of_each_paper(capsys, paper, figure):
    """Every row has a verdict, and one that is off has a cause."""
    status, text, err = amp_nova_reproduce(capsys, paper, "--figure", figure, "--format", "json")

    rows = json.loads(text)
    page = PAGE.read_text()
    assert (status, err) == (0, "")
    assert {(row["paper"], row["figure"]) for row in rows} == {(paper, figure)}
    for row in rows:
        off = row["verdict"] in ("sign only", "not reproduced")
        assert off or row["verdict"] == "reproduced"
        assert bool(row["cause"]) == off, row["quantity"]
        assert row["quantity"] in page, "doc: run tools/reproduction"


def test_the_table_counts_verdicts_and_explains_its_notes(capsys):
    """After the rows: how many of each kind, what was assumed and what was left out."""
    _, text, _ = amp_nova_reproduce(capsys, "kumar2009")

    rows, _, after = text.partition("\n\n")
    counts, notes, left_out = after.split("\n\n")
    assert [row[0] for row in cells(rows)] == ["Paper", *["kumar2009"] * 7]
    assert counts == "1 reproduced, 6 sign only, 0 not reproduced, 0 fitted"
    assert notes.startswith("Notes\n  1  ")
    assert left_out.startswith("Left out\n  kumar2009: ")


def test_a_booking_takes_the_same_time_everywhere(capsys):
    """teabe2017, figure 2: with both solutions, for work that gains what the clock says."""
    _, text, _ = amp_nova_reproduce(capsys, "teabe2017", "--format", "json")

    ours = {row["quantity"]: row["ours"] for row in json.loads(text)}
    for solution in ("solution 1", "solution 2"):
        what = f"one thread of speedup 1.83, {solution}: greatest time over the baseline"
        assert ours[what] == pytest.approx(1.0, rel=0.01)
        assert ours[f"Blast, {solution}: greatest time over the baseline"] == pytest.approx(
            1.0, rel=0.01
        )


def test_figures_are_drawn(capsys, tmp_path):
    """One file per figure, in a folder that is made."""
    pytest.importorskip("matplotlib")
    folder = tmp_path / "figures"
    status, _, err = amp_nova_reproduce(capsys, "kumar2009", "--plot", str(folder))

    assert (status, err) == (0, "")
    assert {p.name for p in folder.iterdir()} == {
        "kumar2009-figures-1-to-4.png",
        "kumar2009-figures-5-to-7.png",
    }
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in folder.iterdir())


def test_a_folder_that_is_a_file_is_refused(capsys, tmp_path):
    """One sentence, before anything is computed."""
    (tmp_path / "taken").write_text("")
    status, out, err = amp_nova_reproduce(capsys, "kumar2009", "--plot", str(tmp_path / "taken"))

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "taken" in err


def test_an_unknown_paper_is_refused(capsys):
    """One sentence that lists the known papers."""
    status, out, err = amp_nova_reproduce(capsys, "nobody1999")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "'nobody1999'" in err
    assert "'kwon2011'" in err


def test_an_unknown_figure_is_refused(capsys):
    """One sentence that lists the figures of the paper."""
    status, out, err = amp_nova_reproduce(capsys, "chen2014", "--figure", "figure 99")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "'figure 99'" in err
    assert "'figure 5'" in err
