# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts for each CPU."""

import os
import time

import pytest

from amp_nova.kernel import cpus
from tests.support.fakehost import SPOIL, put

STAT = """cpu  300 0 100 9000 50 0 3 0 0 0
cpu0 100 0 50 4000 50 0 3 0 0 0
cpu12 200 0 50 5000 0 0 0 0 0 0
intr 12345 0 0
ctxt 1
btime 1700000000
"""


def test_waiting_for_io_is_idle(tmp_path):
    """By CPU, without the sum of all of them."""
    put(tmp_path / "proc/stat", STAT)

    assert cpus.idle_ns(tmp_path) == {0: 4050 * cpus.TICK_NS, 12: 5000 * cpus.TICK_NS}


def test_this_machine_is_idle_for_no_longer_than_it_runs():
    """A busy CPU counts little, to the precision of a tick."""
    cpu = min(os.sched_getaffinity(0))
    before, start_ns = cpus.idle_ns(), time.monotonic_ns()
    time.sleep(0.3)
    after, wall_ns = cpus.idle_ns(), time.monotonic_ns() - start_ns

    assert -2 * cpus.TICK_NS <= after[cpu] - before[cpu] <= wall_ns + 2 * cpus.TICK_NS


@pytest.mark.parametrize("text", ["", "cpu0", "cpu0 1 2 3 x y 6", "cpux 1 2 3 4 5 6", "\n\n"])
def test_nothing_is_known_of_odd_text(tmp_path, text):
    """As if it were not there."""
    put(tmp_path / "proc/stat", text)

    assert cpus.idle_ns(tmp_path) == {}


@pytest.mark.parametrize("fault", SPOIL)
def test_a_spoilt_file_is_no_fault(tmp_path, fault):
    """Whatever it has become."""
    put(tmp_path / "proc/stat", STAT)
    SPOIL[fault](tmp_path / "proc/stat")

    assert all(idle_ns >= 0 for idle_ns in cpus.idle_ns(tmp_path).values())
