"""Where a command finds nothing to work with, it says what to do next, whatever the command.

An empty host, wrong addresses of agent and libvirt, and a host that was never calibrated.
"""

import re

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.agent import wiring
from amp_nova.cmd import agent
from amp_nova.cmd.cli import COMMANDS, main
from amp_nova.guard import __main__ as guard
from amp_nova.sim.commands import record
from tests import machines, trees
from tests.fakehost import Node

START_LIBVIRT = "start libvirt, or name its address in [agent] libvirt_uri"
START_AGENT = "start amp-nova-agent, or name the directory it uses in [agent] state_path"
WHO_IS_HERE = "'amp-nova status' lists its instances"
CALIBRATE = "run 'amp-nova calibrate'"

UNREACHABLE = {
    "status": ([], 1, START_AGENT),
    "explain": (["web"], 1, START_AGENT),
    "pause": (["web", "--ttl", "60"], 2, START_LIBVIRT),
    "resume": (["web"], 2, START_LIBVIRT),
    "release": (["--all"], 2, START_LIBVIRT),
    "record": (["--duration", "2s", "-o", "FILE"], 2, START_LIBVIRT),
}
EMPTY = {
    "pause": (["web", "--ttl", "60"], 2, WHO_IS_HERE),
    "resume": (["web"], 2, WHO_IS_HERE),
    "release": (["web"], 2, WHO_IS_HERE),
    "record": (["--duration", "2s", "-o", "FILE"], 1, "start one, then record again"),
}
NEVER_CALIBRATED = {"topology": ([], 0, CALIBRATE)}
ELSEWHERE = {
    "status": "test_status.py, on an empty host",
    "explain": "test_status.py",
    "calibrate": "what the others name; a busy host: test_calibrate.py",
}
"""Commands with a situation that a test of their own creates."""
ANYWHERE = {
    "flavor check",
    "simulate",
    "compare",
    "reproduce",
    "whatif",
    "demo",
    "help",
    "complete",
}
"""They work on arguments and files alone."""


@pytest.fixture
def config(tmp_path):
    """A configuration in which nothing is where it says."""
    path = tmp_path / "amp-nova.conf"
    path.write_text(
        f"[agent]\nstate_path = {tmp_path}/state\n"
        f"libvirt_uri = qemu:///system?socket={tmp_path}/no.sock\n"
        f"[topology]\ncalibration_file = {tmp_path}/none.yaml\n"
    )
    return path


@pytest.fixture
def run(config, tmp_path, capsys):
    """Runs a command as it is typed; exit status and all that it said."""

    def run_(command, *arguments):
        words = [str(tmp_path / "o.yaml") if a == "FILE" else a for a in arguments]
        try:
            status = main([command, "--config-file", str(config), *words])
        except SystemExit as exc:
            status = exc.code
        return status, "".join(capsys.readouterr())

    return run_


def test_every_command_is_here():
    """A new command needs a situation, or a reason to have none."""
    tested = UNREACHABLE.keys() | EMPTY.keys() | NEVER_CALIBRATED.keys()

    assert tested | ELSEWHERE.keys() | ANYWHERE == COMMANDS.keys()


@pytest.mark.parametrize("command", UNREACHABLE)
def test_wrong_addresses(run, command):
    """Neither the agent's socket nor libvirt's is there."""
    arguments, wanted, step = UNREACHABLE[command]

    status, said = run(command, *arguments)

    assert status == wanted
    assert step in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("option", ["--once", "--dry-run"])
def test_a_single_cycle_without_libvirt(config, capsys, option):
    """As it is typed to see whether the agent would work."""
    assert agent.main(["--config-file", str(config), option]) == 2
    assert START_LIBVIRT in capsys.readouterr().err


@pytest.mark.parametrize("command", EMPTY)
def test_an_empty_host(run, command, tmp_path, monkeypatch):
    """No instance runs, or not the one that was named."""
    (tmp_path / "host").mkdir()
    node = Node(tmp_path / "host", monkeypatch)
    monkeypatch.setattr(wiring, "make_sensor", lambda conf: node.sensor)
    monkeypatch.setattr(record, "_sensor", lambda conf: node.sensor)
    arguments, wanted, step = EMPTY[command]

    status, said = run(command, *arguments)

    assert status == wanted
    assert step in said


def test_nothing_to_release(run, tmp_path, monkeypatch):
    """The answer to --all on an empty host is not an error."""
    (tmp_path / "host").mkdir()
    node = Node(tmp_path / "host", monkeypatch)
    monkeypatch.setattr(wiring, "make_sensor", lambda conf: node.sensor)

    assert run("release", "--all") == (0, "0 released, 0 leftovers\n")


@pytest.mark.parametrize("command", NEVER_CALIBRATED)
def test_before_the_first_calibration(run, command, config, tmp_path):
    """Core types are known and their coefficients are not."""
    root = trees.write(tmp_path / "hybrid", machines.intel_hybrid(pmus=True))
    with config.open("a") as file:
        file.write(f"root = {root}\n")
    arguments, wanted, step = NEVER_CALIBRATED[command]

    status, said = run(command, *arguments)

    assert status == wanted
    assert step in said


def test_the_guard_has_a_version_and_a_next_step(capsys, tmp_path):
    """Like the other programs."""
    (tmp_path / "file").write_text("")

    assert guard.main(["--version"]) == 0
    assert re.fullmatch(r"amp-nova-guard \d\S+\n", capsys.readouterr().out)
    assert guard.main(["--state-path", str(tmp_path / "file/state")]) == 2
    assert "name the folder of [agent] state_path" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_version(command, capsys):
    """``amp-nova COMMAND --version`` too."""
    with pytest.raises(SystemExit) as exit_:
        main([*command.split(), "--version"])

    assert exit_.value.code == 0
    assert re.fullmatch(r"amp-nova \d\S+\n", capsys.readouterr().out)
