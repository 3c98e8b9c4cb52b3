# SPDX-License-Identifier: Apache-2.0
"""What the documentation says about the repository is true."""

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from types import SimpleNamespace

import pytest

from amp_nova.cmd import cli
from tests.support import documented
from tests.support.documented import PAGES, ROOT

TEST = re.compile(r"``(?:[\w/]*/)?(test_\w+\.py)::(test_\w+)``")


def cited() -> list[tuple[str, str]]:
    return sorted({match for page in PAGES for match in TEST.findall(page.read_text())})


@pytest.mark.parametrize(("file", "name"), cited())
def test_a_cited_test_exists(file, name):
    """Claims rest on tests; a renamed test must not leave one behind."""
    files = list((ROOT / "tests").rglob(file))

    assert any(f"def {name}(" in path.read_text() for path in files)


def examples(start):
    """The documented commands that begin so."""
    found = (command for block in documented.blocks() for command in block.commands)
    return sorted({command for command in found if command.startswith(start)})


def shown():
    """Those that begin with ``$``: their output follows, without pipes.

    ``test_first_hour.py`` compares what those of the first hour print.
    """
    line = re.compile(r"^ +\$ (amp-nova [^|>\n]*)", re.MULTILINE)
    pages = [page.read_text() for page in PAGES if page.parent.name != "start"]
    return sorted({found.strip() for page in pages for found in line.findall(page)})


@pytest.mark.parametrize("line", shown())
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


@pytest.mark.parametrize("line", examples("amp-nova "))
def test_every_other_example_is_accepted(line):
    """It needs an agent, root or a cloud; the command and its options exist."""
    app, typed = cli.App(), re.split("[|>]", line)[0]
    command, name, words = app.command_manager.find_command(shlex.split(typed, comments=True)[1:])

    assert command(app, None, cmd_name=name).get_parser(name).parse_args(words)


@pytest.mark.parametrize("command", examples("openstack amp "))
def test_every_command_of_the_openstack_client_is_accepted(command):
    """By the parser of the class that the entry point names."""
    words = shlex.split(command, comments=True)[1:]
    entries = {e.name: e for e in entry_points(group="openstack.amp.v1")}
    name = "_".join(words[:3])

    parser = entries[name].load()(SimpleNamespace(), None).get_parser(" ".join(words[:3]))

    parser.parse_args(words[3:])


@pytest.mark.parametrize("source", ["doc/source", "releasenotes/source"])
def test_the_pages_are_built_without_a_warning(tmp_path, source):
    """Malformed tables, references to nothing, notes that are not valid. The version is right."""
    pytest.importorskip("openstackdocstheme", reason="doc/requirements.txt is not installed")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]

    done = subprocess.run(
        [*build, source, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert f"# Version: {version('amp-nova')}\n".encode() in (tmp_path / "objects.inv").read_bytes()
