# SPDX-License-Identifier: Apache-2.0
"""What a difference between a paper and ours is called."""

from dataclasses import dataclass

import pytest

from amp_nova_lab.reproduce.experiment import (
    Figure,
    Inputs,
    Row,
    at_least,
    at_most,
    between,
    exactly,
    fitted,
    identity,
)


@pytest.mark.parametrize(
    ("published", "ours", "unit", "difference", "verdict"),
    [
        (exactly(10.0, "%"), 10.4, "%", 0.4, "reproduced"),
        (exactly(10.0, "%"), 11.0, "%", 1.0, "reproduced"),
        (exactly(10.0, "%"), 11.2, "%", 1.2, "sign only"),
        (exactly(10.0, "%"), 0.5, "%", -9.5, "not reproduced"),
        (exactly(0.0, "%"), 0.4, "%", 0.4, "reproduced"),
        (exactly(0.0, "%"), 3.0, "%", 3.0, "not reproduced"),
        (exactly(1.5, neutral=1.0), 1.54, "", 0.04, "reproduced"),
        (exactly(1.5, neutral=1.0), 1.2, "", -0.3, "sign only"),
        (between(-28.0, -23.0, "%"), -25.0, "%", 0.0, "reproduced"),
        (between(-28.0, -23.0, "%"), -13.0, "%", 10.0, "sign only"),
        (between(-28.0, -23.0, "%"), 3.0, "%", 26.0, "not reproduced"),
        (at_most(2.0, "%"), -40.0, "%", 0.0, "reproduced"),
        (at_most(2.0, "%"), 5.0, "%", 3.0, "not reproduced"),
        (at_most(-19.0, "%"), -6.0, "%", 13.0, "sign only"),
        (at_least(0.0, "%", text="above 0"), 4.0, "%", 0.0, "reproduced"),
    ],
)
def test_verdicts(published, ours, unit, difference, verdict):
    """Within the paper's range or a tenth of its effect; else its side of no effect; else not."""
    row = Row("quantity", published, ours, unit)

    assert row.difference == pytest.approx(difference)
    assert row.verdict == verdict


@pytest.mark.parametrize(
    ("kind", "ours", "verdict"),
    [
        (identity("by definition"), 1.0, "identity"),
        (identity("by definition"), 1.2, "not reproduced"),
        (fitted("speedup of mcf"), 1.0, "fitted"),
        (fitted("speedup of mcf"), 1.2, "not reproduced"),
    ],
)
def test_rows_that_are_no_results(kind, ours, verdict):
    """They do not count as reproduced; one that should agree and does not is a difference."""
    row = Row("quantity", exactly(1.0, neutral=1.0), ours, cause="unknown", kind=kind)

    assert row.verdict == verdict
    assert ("Cause: unknown" in row.notes) == (ours != 1.0)


@dataclass(frozen=True)
class Guess(Inputs):
    """An input that is not printed."""

    speedup: float = 2.0


def test_an_interval_covers_seeds_and_inputs():
    """Our value is the mean over seeds with the chosen inputs."""

    def rows(inputs):
        yield Row("speed", exactly(2.2), inputs.speedup + inputs.seed / 10.0)

    wrong, varied = (Guess(speedup=1.0),), (Guess(speedup=1.5),)
    figure = Figure("f", "1", "title", rows, wrong, Guess(), varied, random=True)
    (row,) = figure.results()

    assert (row.ours, row.least, row.greatest) == pytest.approx((2.2, 1.5, 2.4))
    assert row.verdict == "reproduced"
    assert not row.always_agrees


@pytest.mark.parametrize(
    ("wrong", "verdict", "if_wrong"),
    [
        ((0.0,), "reproduced", "not reproduced"),
        ((2.0, 0.5), "reproduced", "sign only"),
        ((2.0, 2.1), "identity", "reproduced"),
    ],
)
def test_a_row_that_no_wrong_input_can_fail_is_an_identity(wrong, verdict, if_wrong):
    """The worst outcome counts."""

    def rows(inputs):
        yield Row("speed", exactly(2.0), inputs.speedup)

    figure = Figure("f", "1", "title", rows, [Guess(speedup=value) for value in wrong], Guess())
    (row,) = figure.results()

    assert (row.verdict, row.if_wrong) == (verdict, if_wrong)
