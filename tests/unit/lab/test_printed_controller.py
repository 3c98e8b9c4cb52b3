# SPDX-License-Identifier: Apache-2.0
"""The published rule for bookings of instructions per second, as algorithms.md works it out."""

import pytest

from amp_nova_lab.printed_controller import Printed


@pytest.mark.parametrize(
    ("booked", "printed", "decay"),
    [
        (0.02, 1567, 733),
        (0.10, 233, 150),
        (0.30, 66.7, 33.3),
        (0.50, 0, 0),
        (0.60, 11.1, -16.7),
        (0.80, -6.2, -16.7),
        (0.95, -12.3, -15.8),
    ],
)
def test_it_delivers_what_the_table_says(booked, printed, decay):
    """Error in percent of the booking, for a vCPU that always wants to run."""
    for decays, expected in ((False, printed), (True, decay)):
        state, ran, periods = Printed(), 0, 6000
        for _ in range(periods):
            runs = not state.blocked
            ran += runs
            state = state.after(float(runs), booked, decays=decays)
        error = ran / periods / booked - 1.0
        assert error * 100.0 == pytest.approx(expected, abs=0.5)
