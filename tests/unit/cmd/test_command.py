# SPDX-License-Identifier: Apache-2.0
"""Reports as commands print them, in every format."""

import argparse
import json
import os
import subprocess
import sys

import pytest
import yaml

from amp_nova.cmd import cli
from amp_nova.cmd.command import Answer, Report
from amp_nova.exceptions import BookingInvalid
from tests.support.tables import cells

DOCUMENT = {"a": [1, "\u00e4"]}


class Example(Report):
    """Show an example"""

    _epilog = "example: amp-nova topology"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """An argument that says how it ends."""
        parser.add_argument("--end")

    def answer(self, args: argparse.Namespace) -> Answer:
        """Two rows, the first value of which is unknown; or an error."""
        if args.end:
            raise BookingInvalid(f"{args.end}\nat all")
        rows = [(None, "slow"), (2.0, "fast"), (10.0, "any")]
        return Answer(("Speed Up", "Host"), rows, DOCUMENT, above=["above"], below=["below"])


@pytest.fixture
def run(monkeypatch, amp):
    """Runs the example."""
    monkeypatch.setitem(cli.COMMANDS, "topology", (f"{__name__}:Example", "an example"))
    return lambda *words: amp("topology", *words)


def test_a_table_has_lines_around_it(run):
    """For people: what is unknown is None."""
    status, out, err = run()

    assert (status, err) == (0, "")
    assert (out.splitlines()[0], out.splitlines()[-1]) == ("above", "below")
    assert cells(out) == [["Speed Up", "Host"], ["-", "slow"], ["2.0", "fast"], ["10.0", "any"]]


def test_a_document_is_whole_unless_columns_or_an_order_are_chosen(run):
    """JSON and YAML keep their shape for scripts; rows are asked for."""
    assert json.loads(run("--format", "json")[1]) == DOCUMENT
    assert run("-f", "json", "--noindent")[1] == '{"a": [1, "\\u00e4"]}\n'
    assert run("-f", "yaml")[1] == "a:\n- 1\n- \u00e4\n"
    assert json.loads(run("-f", "json", "-c", "speed_up")[1]) == [
        {"Speed Up": None},
        {"Speed Up": 2.0},
        {"Speed Up": 10.0},
    ]
    rows = yaml.safe_load(run("-f", "yaml", "--sort-column", "host")[1])
    assert [row["Host"] for row in rows] == ["any", "fast", "slow"]


def test_lines_around_a_table_are_left_out_with_columns(run):
    """Who asks for columns wants nothing else."""
    _, out, _ = run("-c", "host")

    assert cells(out) == [["Host"], ["slow"], ["fast"], ["any"]]
    assert "above" not in out
    assert "below" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-c", "hots"), "'hots' is not a column: did you mean 'host'?"),
        (("-c", "host", "-c", "x"), "'x' is not a column: the columns are speed_up, host"),
        (("--sort-column", "x"), "'x' is not a column: the columns are speed_up, host"),
        (
            ("--format", "xml"),
            "invalid choice: 'xml' (choose from 'csv', 'json', 'table', 'val",
        ),
        (("--end", "bad"), "amp-nova: bad at all\n"),
    ],
)
def test_bad_input_is_one_sentence(run, arguments, said):
    """Exit status 2, and what is allowed."""
    status, out, err = run(*arguments)

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert err.startswith("amp-nova")


def test_a_command_that_ends_unexpectedly_shows_no_traceback(run, monkeypatch):
    """Unless the user wants to see it."""
    monkeypatch.setattr(Example, "answer", lambda self, args: 1 / 0)

    assert run() == (1, "", "amp-nova: division by zero\n")
    assert "Traceback" in run("--debug")[2]


def test_a_command_of_the_simulator_that_is_not_installed(amp, monkeypatch):
    """Distributions have it as a package of its own."""
    for module in [name for name in sys.modules if name.startswith("amp_nova_lab")]:
        monkeypatch.delitem(sys.modules, module)

    class Missing:
        def find_spec(self, name, _path=None, _target=None):
            if name == "amp_nova_lab":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])

    said = "it is part of the simulator, which is not installed: install python3-amp-nova-lab"
    assert amp("demo") == (2, "", f"amp-nova: 'demo' cannot be run: {said}\n")


def test_a_reader_that_quits_is_no_error():
    """As ``head`` does: nothing on standard error, and the exit status of a closed pipe."""
    words = [sys.executable, "-m", "amp_nova.cmd.cli", "flavor", "check", "amp:pref_core=1"]
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(words, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)

    assert (done.returncode, done.stderr) in ((0, b""), (141, b""))
