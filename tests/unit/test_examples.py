"""The commands accept the examples in README and the documentation.

Lines that begin with ``$`` run anywhere, so they are run. The others need an agent, root or a
cloud, so they are only parsed.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import amp_nova
from amp_nova.cmd import cli

ROOT = Path(amp_nova.__file__).parent.parent
PAGES = [*ROOT.glob("*.rst"), *sorted((ROOT / "doc/source").rglob("*.rst"))]
LINE = re.compile(r"^ +(\$ )?(amp-nova [^|>\n]*)", re.MULTILINE)


def examples(dollar: str) -> list[str]:
    found = (match for page in PAGES for match in LINE.finditer(page.read_text()))
    return sorted({match[2].strip() for match in found if (match[1] or "") == dollar})


@pytest.mark.parametrize("line", examples("$ "))
def test_an_example_that_runs_anywhere_runs(line):
    """From the root of the checkout, without root or a hypervisor, exit status 0."""
    bin_ = Path(sys.executable).parent
    done = subprocess.run(
        shlex.split(line),
        cwd=ROOT,
        env=os.environ | {"PATH": f"{bin_}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("line", examples(""))
def test_every_other_example_is_accepted(line):
    """The command line of ``amp-nova`` knows the command and its options."""
    app = cli.App()
    command, name, words = app.command_manager.find_command(shlex.split(line, comments=True)[1:])

    assert command(app, None, cmd_name=name).get_parser(name).parse_args(words)


def test_there_are_examples():
    """The pattern finds some of each kind."""
    assert "amp-nova topology" in examples("")
    assert len(examples("$ ")) >= 2
