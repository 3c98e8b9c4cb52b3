"""Tables as commands print them, in every format."""

import argparse
import csv
import io
import json

import pytest
import yaml

from amp_nova.cmd import cli, table
from amp_nova.cmd.table import Cell, Table, formatted
from amp_nova.exceptions import ConfigInvalid

RECORDING = "doc/source/user/two-vms.yaml"


def example(sections=False):
    """Two columns of text around one of numbers, the last of which is unknown."""
    rows = [
        ("b", formatted(2.0, ".2f"), Cell(None, "any")),
        ("a", formatted(10.0, ".2f"), "fast"),
        ("b", formatted(None, ".2f", "unknown"), "slow"),
    ]
    return Table(("HOST", "speed up", "core type"), rows, sections)


def printed(capsys, *arguments, document=None):
    """What ``show`` prints with these arguments."""
    parser = argparse.ArgumentParser()
    table.add_arguments(parser)
    table.show(parser.parse_args(arguments), example(), document, (["above"], ["below"]))
    return capsys.readouterr().out


def test_text_is_left_aligned_and_numbers_are_right_aligned():
    """Also where a number is not known."""
    assert example().lines() == [
        "HOST  speed up  core type",
        "b         2.00  any",
        "a        10.00  fast",
        "b      unknown  slow",
    ]


def test_sections_have_a_table_for_every_first_value():
    """In the order in which the values come."""
    assert example(sections=True).lines() == [
        "b",
        "speed up  core type",
        "    2.00  any",
        " unknown  slow",
        "",
        "a",
        "speed up  core type",
        "   10.00  fast",
    ]


@pytest.mark.parametrize(
    ("sort", "hosts"),
    [("speed_up", "bab"), ("speed_up:desc", "abb"), ("host", "abb"), ("host:asc", "abb")],
)
def test_rows_in_order(sort, hosts):
    """By value, not by its text; what is unknown comes last in both directions."""
    found = example().select([], sort)

    assert "".join(row["host"] for row in found.records()) == hosts
    assert sort.startswith("host") or found.records()[-1]["speed_up"] is None


def test_a_document_is_whole_unless_columns_or_an_order_are_asked_for(capsys):
    """JSON and YAML keep their shape for scripts; rows are asked for."""
    whole = {"a": [1]}

    assert json.loads(printed(capsys, "--format", "json", document=whole)) == whole
    assert yaml.safe_load(printed(capsys, "--format", "yaml", document=whole)) == whole
    rows = json.loads(printed(capsys, "--format", "json", "-c", "core type", document=whole))
    assert rows == [{"core_type": None}, {"core_type": "fast"}, {"core_type": "slow"}]


def test_lines_around_a_table_are_left_out_with_columns(capsys):
    """Who asks for columns wants nothing else."""
    assert printed(capsys).splitlines()[::5] == ["above", "below"]
    assert printed(capsys, "-c", "host").splitlines() == ["HOST", "b", "a", "b"]


def test_a_column_that_does_not_exist_is_refused():
    """One sentence with the column that was probably meant, or with all of them."""
    with pytest.raises(ConfigInvalid, match=r"-c core_typ is not a column: did you mean 'core_ty"):
        example().select(["core_typ"], None)
    with pytest.raises(ConfigInvalid, match="--sort x is not a column: the columns are host, sp"):
        example().select([], "x")


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        ("topology", "core_type,pcpus,cores,threads_core,coefficient"),
        ("flavor check amp:pref_core=0.5", "vcpu,kind,refcores,ips,limit,core_type"),
        (f"simulate {RECORDING}", "vm,booked,delivered,least,most,progress"),
        (f"compare {RECORDING} --policy credit", "scenario,policy,throughput,asp,unfairness"),
        ("reproduce kumar2009", "paper,figure,quantity,published,ours,difference,verdict"),
    ],
)
def test_every_table_as_csv(words, columns, capsys):
    """A heading of names, and as many values in every row."""
    assert cli.main([*words.split(), "--format", "csv"]) == 0

    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert ",".join(rows[0]).startswith(columns)
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) > 1
