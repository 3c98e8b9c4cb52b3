# SPDX-License-Identifier: Apache-2.0
"""Properties of every calibration."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.hardware import slices
from amp_nova.hardware.calibration import Reference
from amp_nova.hardware.slices import Slice
from tests.support.calibrations import sample

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


@given(measured())
def test_changing_the_reference_inverts_every_round(samples):
    """The interval of a relative to b is the inverse of that of b relative to a, within 1 %."""
    a, b = coefficient(samples, "a", "b"), coefficient(samples, "b", "a")

    assert math.isclose(a.low, 1 / b.high, rel_tol=0.0101)
    assert math.isclose(a.high, 1 / b.low, rel_tol=0.0101)


@given(measured(), st.lists(st.floats(0.01, 100), min_size=8, max_size=8))
def test_drift_between_rounds_cancels(samples, drift):
    """A slow round slows both types, and the coefficient does not change; nor with another unit."""
    drifted = [
        sample(s.core_type, s.ops_per_cpu_s * drift[s.round], s.round, s.kernel) for s in samples
    ]

    assert math.isclose(
        coefficient(samples, "a", "b").value, coefficient(drifted, "a", "b").value, rel_tol=1e-9
    )


class DisturbedCore:
    """A core that others slow down half of the time, in bursts of 1 to 200 ms.

    ``loss_ratio``: share of its speed that a burst takes; 1: all of it, as a hypervisor does.
    """

    def __init__(self, op_ms, loss_ratio, chance):
        self.op_ms, self.loss_ratio, self.chance = op_ms, loss_ratio, chance
        self.end_ms, self.burst = 0.0, False

    def run(self, at_ms, work_ms):
        """Milliseconds that work takes that starts at a time and takes ``work_ms`` alone."""
        began_ms = at_ms
        while True:
            while self.end_ms <= at_ms:
                self.end_ms += math.exp(self.chance.uniform(0, math.log(200)))
                self.burst = not self.burst
            speed = 1 - self.loss_ratio if self.burst else 1.0
            if speed * (self.end_ms - at_ms) >= work_ms:
                return at_ms + work_ms / speed - began_ms
            work_ms -= speed * (self.end_ms - at_ms)
            at_ms = self.end_ms


def calibrated(fast_loss, slow_loss, seed):
    """The coefficient of a core that is twice as fast, after six rounds of 1 s of each kernel.

    The true speed of both drifts by 2 % from round to round, and slices differ by up to 0.5 %.
    """
    chance = random.Random(seed)
    cores = {"fast": DisturbedCore(1.0, fast_loss, chance)}
    cores["slow"] = DisturbedCore(2.0, slow_loss, chance)
    at_ms, samples = 0.0, []
    for number in range(6):
        taken, drift = {}, chance.uniform(0.98, 1.02)
        end_ms = at_ms + 1000 * len(cores) * len(KERNELS)
        while at_ms < end_ms:
            for run in slices.runs(dict.fromkeys(cores, False), KERNELS, chance):
                core = cores[run.core_type]
                work_ms = 15 * core.op_ms * drift * chance.uniform(1, 1.005)
                took_ms = core.run(at_ms, work_ms)
                at_ms += took_ms
                part = Slice(15e3 / took_ms, took_ms / 1e3, took_ms / 1e3)
                taken.setdefault(run, []).append(part)
        samples += [s for run, of in taken.items() if (s := slices.fastest(number, run, 0, of))]
    return coefficient(samples, "fast", "slow")


@pytest.mark.parametrize("loss_ratio", [0.4, 0.99], ids=["busy sibling", "hidden steal"])
@pytest.mark.parametrize("both", [False, True], ids=["slow core alone", "both cores"])
def test_bursts_do_not_change_the_coefficient(both, loss_ratio):
    """Within 3 % of the truth always, and the interval contains it 95 times of 100."""
    found = [calibrated(loss_ratio if both else 0.0, loss_ratio, seed) for seed in range(40)]

    assert max(abs(f.value / 2 - 1) for f in found) < 0.03
    assert sum(f.low <= 2 <= f.high for f in found) >= 0.95 * len(found)
    assert all(f.confidence_ratio > 0.95 for f in found)
