"""What a difference between a paper and ours is called."""

import pytest

from amp_nova.sim.reproduce.experiment import Row, at_least, at_most, between, exactly


@pytest.mark.parametrize(
    ("published", "ours", "unit", "difference", "verdict"),
    [
        (exactly(10.0, "%"), 10.4, "%", 0.4, "reproduced"),
        (exactly(10.0, "%"), 11.0, "%", 1.0, "reproduced"),
        (exactly(10.0, "%"), 11.2, "%", 1.2, "sign only"),
        (exactly(10.0, "%"), 0.5, "%", -9.5, "not reproduced"),
        (exactly(10.0, "%"), -10.0, "%", -20.0, "not reproduced"),
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
        (at_least(0.0, "%", text="above 0"), -4.0, "%", -4.0, "not reproduced"),
    ],
)
def test_verdicts(published, ours, unit, difference, verdict):
    """Within the paper's range or a tenth of its effect; else its side of no effect; else not."""
    row = Row("quantity", published, ours, unit)

    assert row.difference == pytest.approx(difference)
    assert row.verdict == verdict


def test_a_fitted_row_is_no_result():
    """However close it is."""
    row = Row("quantity", exactly(1.0), 1.0, fitted="speedup of mcf")

    assert row.verdict == "fitted: speedup of mcf"
