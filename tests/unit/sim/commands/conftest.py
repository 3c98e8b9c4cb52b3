"""Runs the commands as a user does."""

import pytest

from amp_nova.cmd import cli


@pytest.fixture
def amp_nova(capsys):
    """Runs ``amp-nova`` with these words; exit status, standard output, standard error."""

    def run(*words):
        try:
            status = cli.main([str(word) for word in words])
        except SystemExit as exc:
            status = exc.code
        return status, *capsys.readouterr()

    return run
