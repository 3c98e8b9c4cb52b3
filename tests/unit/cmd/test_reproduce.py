"""``amp-nova reproduce`` as a user sees it."""

import json

import pytest

from amp_nova.cmd import cli


def amp_nova_reproduce(capsys, *arguments):
    """Exit status, standard output, standard error."""
    try:
        status = cli.main(["reproduce", *arguments])
    except SystemExit as exc:
        status = exc.code
    out, err = capsys.readouterr()
    return status, out, err


def test_published_values_are_beside_ours(capsys):
    """JSON is a list of figures; the table has the same."""
    status, text, err = amp_nova_reproduce(capsys, "kumar2009", "--format", "json")
    found = json.loads(text)
    assert (status, err) == (0, "")
    assert {tuple(f) for f in found} == {
        ("paper", "figure", "quantity", "published", "ours", "unit")
    }

    _, table, _ = amp_nova_reproduce(capsys, "kumar2009")
    assert table.splitlines()[0] == "kumar2009"
    assert len(table.splitlines()) == 2 + len(found)


def test_a_booking_takes_the_same_time_everywhere(capsys):
    """teabe2017, figure 2: with both solutions, but not without a limit."""
    _, text, _ = amp_nova_reproduce(capsys, "teabe2017", "--format", "json")

    ours = {f["quantity"].rpartition("CPU-bound, ")[2]: f for f in json.loads(text)}

    none = ours["no limit"]
    assert none["ours"] == pytest.approx(float(none["published"]), rel=0.01)
    for kept in ("solution 1 (reference cores)", "solution 2 (Ips), default controller"):
        assert ours[kept]["ours"] == pytest.approx(1.0, rel=0.01)


def test_an_unknown_paper_is_refused(capsys):
    """One sentence that lists the known papers."""
    status, out, err = amp_nova_reproduce(capsys, "nobody1999")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "'nobody1999'" in err
    assert "'kwon2011'" in err
