# SPDX-License-Identifier: Apache-2.0
"""How ``amp-nova selftest`` judges; ``tests/integration/test_selftest_real.py`` runs it."""

import os

import pytest

from amp_nova.cmd import cli
from amp_nova.cmd.selftest import BROKEN, BUSY, KEPT, Check, in_all, judged


@pytest.mark.parametrize(
    ("check", "measured", "lost", "verdict"),
    [
        ("share", 0.5, 0.0, KEPT),
        ("share", 0.495, 0.0, KEPT),
        ("share", 0.48, 0.0, BROKEN),
        ("share", 0.48, 0.03, BUSY),
        ("share", 0.3, 0.03, BROKEN),
        ("share", 0.52, 0.2, BROKEN),
        ("work beside siblings", 0.48, 0.0, KEPT),
        ("work beside siblings", 0.4, 0.0, BROKEN),
        ("work beside siblings", 0.6, 0.0, KEPT),
        ("coefficient", 0.46, 0.0, KEPT),
        ("coefficient", 0.7, 0.0, BROKEN),
    ],
)
def test_what_is_kept(check, measured, lost, verdict):
    """Too much time is as wrong as too little; what others took is not the agent's fault."""
    assert judged(check, "fast", 0.5, measured, lost).verdict == verdict


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ((KEPT, KEPT), "all are kept"),
        ((KEPT, BUSY), "1 of 2 cannot be judged"),
        ((BUSY, BROKEN, KEPT), "1 of 3 promises are not kept"),
    ],
)
def test_the_verdict_on_all(verdicts, said):
    """What counts instructions is no promise."""
    checks = [Check("share", "fast", 0.5, 0.5, verdict) for verdict in verdicts]

    assert in_all([*checks, Check("instructions counted by", "", "", "perf", "-")]) == said


def test_it_takes_root(capsys, monkeypatch):
    """One sentence, exit status 2."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cli.main(["selftest"]) == 2
    assert "run it as root" in capsys.readouterr().err
