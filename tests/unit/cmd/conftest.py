# SPDX-License-Identifier: Apache-2.0
"""``amp-nova`` as a user types it."""

import pytest

from amp_nova.agent.guarding import Guarding
from amp_nova.cmd.cli import main
from tests.support.fakehost import Node


@pytest.fixture
def amp(capsys):
    """Runs ``amp-nova``; exit status, output and error."""

    def amp_(*words):
        try:
            status = main([str(word) for word in words])
        except SystemExit as exc:
            status = exc.code
        return status, *capsys.readouterr()

    return amp_


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A fake node in place of this machine."""
    pytest.importorskip("libvirt", reason="libvirt-python is not installed")
    from amp_nova.agent import wiring  # only where libvirt is

    (tmp_path / "host").mkdir()
    found = Node(tmp_path / "host", monkeypatch)
    monkeypatch.setattr(wiring, "make_sensor", lambda conf, wake=None: found.sensor)
    # A real guard must not take a fake node's threads for real ones.
    monkeypatch.setattr(Guarding, "_start", lambda _self: None)
    return found


@pytest.fixture
def config(tmp_path):
    """A configuration file for the test."""
    path = tmp_path / "amp-nova.conf"
    path.write_text(f"[agent]\nstate_path = {tmp_path}/state\n")
    return path


@pytest.fixture
def run(amp, config):
    """Runs a command with that configuration."""
    return lambda command, *words: amp(command, "--config-file", config, *words)
