# SPDX-License-Identifier: Apache-2.0
"""``amp-nova probe`` runs the probe's file."""

import pytest

from amp_nova.tenant import probe


@pytest.mark.parametrize(("kept", "status"), [(True, 0), (False, 1)])
def test_the_report_and_the_verdict(amp, monkeypatch, kept, status):
    """The report is printed; a promise that is not kept is the answer "no"."""
    monkeypatch.setattr(probe, "run", lambda args: (f"{args.duration} s", kept))

    assert amp("probe", "--duration", "10") == (status, "10 s\n", "")


@pytest.mark.parametrize("words", [("--duration", "9"), ("--reference", "/none")])
def test_bad_input(amp, words):
    """Exit status 2 and one sentence."""
    status, out, err = amp("probe", *words)

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words[1] in err
