"""Properties of every calibration."""

import math

from hypothesis import given
from hypothesis import strategies as st

from amp_nova.hardware import calibration
from amp_nova.hardware.calibration import Reference
from tests.calibrations import FLOAT, INTEGER, sample

RATES = st.floats(1.0, 1e9)
KERNELS = ("integer", "float")


@st.composite
def measured(draw):
    """Rates of two core types and two kernels over one to eight rounds."""
    rounds = draw(st.integers(1, 8))
    return [
        sample(core_type, draw(RATES), number, kernel)
        for number in range(rounds)
        for core_type in ("a", "b")
        for kernel in KERNELS
    ]


def coefficient(samples, core_type, reference):
    return Reference(reference, tuple(samples)).ratio(samples, core_type, KERNELS)


@given(st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=40))
def test_the_interval_encloses_the_median(values):
    """The estimate is within its interval, and the interval within the range of values."""
    found = calibration.estimate(values)

    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    assert 0 <= found.confidence_ratio < 1


@given(st.integers(6, 60))
def test_six_rounds_or_more_have_the_wanted_confidence(n):
    """From six values on the confidence is 95 %; from nine on it takes less than the range."""
    found = calibration.estimate(list(range(n)))

    assert found.confidence_ratio >= 0.95
    assert n < 9 or found.low > 0


@given(measured(), st.floats(0.01, 100))
def test_another_unit_of_work_changes_no_coefficient(samples, factor):
    """The unit of bogo operations does not matter."""
    scaled = [sample(s.core_type, s.ops * factor, s.round, s.kernel) for s in samples]

    assert math.isclose(
        coefficient(samples, "a", "b").value, coefficient(scaled, "a", "b").value, rel_tol=1e-9
    )


@given(measured())
def test_changing_the_reference_inverts_every_round(samples):
    """The interval of a relative to b is the inverse of that of b relative to a."""
    a, b = coefficient(samples, "a", "b"), coefficient(samples, "b", "a")

    assert math.isclose(a.low, 1 / b.high, rel_tol=1e-9)
    assert math.isclose(a.high, 1 / b.low, rel_tol=1e-9)


@given(measured(), st.lists(st.floats(0.1, 10), min_size=8, max_size=8))
def test_drift_between_rounds_cancels(samples, drift):
    """A slow round slows both types, and the coefficient does not change."""
    drifted = [sample(s.core_type, s.ops * drift[s.round], s.round, s.kernel) for s in samples]

    assert math.isclose(
        coefficient(samples, "a", "b").value, coefficient(drifted, "a", "b").value, rel_tol=1e-9
    )


@given(measured())
def test_results_are_slowest_first(samples):
    """Coefficients ascend, and that of the reference core is 1."""
    results = calibration.summarise(
        samples, {"a": (0,), "b": (1,)}, (INTEGER, FLOAT), Reference("a", tuple(samples))
    )
    values = [r.coefficient.value for r in results]

    assert values == sorted(values)
    assert next(r.coefficient.value for r in results if r.name == "a") == 1


@given(st.dictionaries(st.text(), st.booleans(), min_size=1), st.integers(1, 5))
def test_every_type_runs_every_kernel_in_every_round(types, repeat):
    """The schedule is complete and without repetition."""
    steps = calibration.schedule(types, KERNELS, repeat)

    assert len(set(steps)) == len(steps)
    assert len(steps) == repeat * len(KERNELS) * (len(types) + sum(types.values()))
