"""``amp-nova`` as a user types it."""

import pytest

from amp_nova.cmd.cli import main


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
def config(tmp_path):
    """A configuration file for the test."""
    path = tmp_path / "amp-nova.conf"
    path.write_text(f"[agent]\nstate_path = {tmp_path}/state\n")
    return path


@pytest.fixture
def run(amp, config):
    """Runs a command with that configuration."""
    return lambda command, *words: amp(command, "--config-file", config, *words)
