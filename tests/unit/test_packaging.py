"""What an installed amp-nova offers: commands, entry points, a sample configuration."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from oslo_config import generator

import amp_nova
from amp_nova.cmd import cli

ROOT = Path(amp_nova.__file__).parent.parent
SUBCOMMANDS = [
    [],
    ["topology"],
    ["calibrate"],
    ["status"],
    ["explain"],
    ["pause"],
    ["resume"],
    ["release"],
    ["flavor"],
    ["flavor", "check"],
    ["simulate"],
    ["demo"],
]


@pytest.mark.parametrize("words", SUBCOMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(words, capsys):
    """``--help`` exits 0 and shows how the command is typed."""
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "--help"])

    assert stop.value.code == 0
    assert "amp-nova " + " ".join(words) in capsys.readouterr().out.partition("xample")[2]


def test_the_agent_explains_itself_with_an_example():
    """``amp-nova-agent --help`` needs neither libvirt nor root."""
    done = subprocess.run(
        [sys.executable, "-c", "from amp_nova.cmd.agent import main; main()", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "amp-nova-agent" in done.stdout.partition("xample")[2]


def test_the_version_is_the_installed_one(capsys):
    """``amp-nova --version`` names the version that the package index knows."""
    with pytest.raises(SystemExit):
        cli.main(["--version"])

    assert capsys.readouterr().out == f"amp-nova {importlib.metadata.version('amp-nova')}\n"


def entry_points():
    # What Nova loads is loaded where Nova is: in the functional tests.
    found = importlib.metadata.distribution("amp-nova").entry_points
    return [e for e in found if not e.group.startswith("nova.")]


@pytest.mark.parametrize("entry_point", entry_points(), ids=lambda e: f"{e.group}:{e.name}")
def test_every_entry_point_leads_somewhere(entry_point):
    """No entry point names a module or an attribute that is not there."""
    assert callable(entry_point.load())


def test_the_sample_configuration_is_up_to_date(tmp_path):
    """The sample is what ``tox -e genconfig`` writes from the options in the code."""
    fresh = tmp_path / "sample"
    config = ROOT / "etc/amp-nova/config-generator.conf"

    generator.main(["--config-file", str(config), "--output-file", str(fresh)])

    assert (ROOT / "etc/amp-nova/amp-nova.conf.sample").read_text() == fresh.read_text()
