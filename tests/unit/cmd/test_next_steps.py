# SPDX-License-Identifier: Apache-2.0
"""Where a command finds nothing to work with, it says what to do next, whatever the command.

An empty host, wrong addresses of agent and libvirt, and a host that was never calibrated.
"""

import re

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.guard import __main__ as guard
from amp_nova_lab.commands import record

START_LIBVIRT = "start libvirt, or name its address in [agent] libvirt_uri"
START_AGENT = "start amp-nova-agent, or name the directory it uses in [agent] state_path"
WHO_IS_HERE = "'amp-nova status' lists its instances"

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
    "release --all": ([], 0, "0 released, 0 leftovers"),
    "record": (["--duration", "2s", "-o", "FILE"], 1, "start one, then record again"),
}


@pytest.fixture
def typed(amp, tmp_path):
    """Runs a command where nothing is as configured; exit status and all that it said."""
    config = tmp_path / "amp-nova.conf"
    config.write_text(
        f"[agent]\nstate_path = {tmp_path}/state\n"
        f"libvirt_uri = qemu:///system?socket={tmp_path}/no.sock\n"
    )

    def typed_(command, *arguments):
        words = [str(tmp_path / "o.yaml") if a == "FILE" else a for a in arguments]
        status, out, err = amp(*command.split(), "--config-file", config, *words)
        return status, out + err

    return typed_


@pytest.mark.parametrize("command", UNREACHABLE)
def test_wrong_addresses(typed, command):
    """Neither the agent's socket nor libvirt's is there."""
    arguments, wanted, step = UNREACHABLE[command]

    status, said = typed(command, *arguments)

    assert (status, said.count("\n")) == (wanted, 1)
    assert step in said


@pytest.mark.parametrize("command", EMPTY)
def test_an_empty_host(typed, command, node, monkeypatch):
    """No instance runs, or not the one that was named."""
    monkeypatch.setattr(record, "_sensor", lambda conf: node.sensor)
    arguments, wanted, step = EMPTY[command]

    status, said = typed(command, *arguments)

    assert status == wanted
    assert step in said


def test_the_guard_has_a_version_and_a_next_step(capsys, tmp_path):
    """Like the other programs."""
    (tmp_path / "file").write_text("")

    assert guard.main(["--version"]) == 0
    assert re.fullmatch(r"amp-nova-guard \d\S+\n", capsys.readouterr().out)
    assert guard.main(["--state-path", str(tmp_path / "file/state")]) == 2
    assert "name the folder of [agent] state_path" in capsys.readouterr().err
