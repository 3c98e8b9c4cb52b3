# SPDX-License-Identifier: Apache-2.0
"""``amp-nova-vendordata`` where it cannot run; where it can, it is in tests/functional."""

import sys

import pytest

from amp_nova.tenant.server import main


def test_without_keystones_filter_it_says_what_to_install(monkeypatch, capsys):
    """One sentence, exit status 2."""
    monkeypatch.setitem(sys.modules, "keystonemiddleware", None)

    assert main([]) == 2

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "install amp-nova[vendordata]" in said


@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), (["--zzz"], 2)])
def test_it_explains_itself(words, status, capsys):
    """With an example; a misspelt option is one sentence."""
    with pytest.raises(SystemExit) as stop:
        main(words)

    out, err = capsys.readouterr()
    assert stop.value.code == status
    assert "example: amp-nova-vendordata" in out or "unrecognized arguments: --zzz" in err
