# SPDX-License-Identifier: Apache-2.0
"""What is safe for a vCPU, decided from its record and its present state."""

import pytest

from amp_nova.guard.record import RecordedVcpu, Tuning
from amp_nova.guard.restore import safe, steps
from amp_nova.model.bandwidth import Bandwidth, SafeState, Step

SLOW, FAST, OTHER = frozenset({0, 1}), frozenset({2, 3}), frozenset({9})
ANY = SLOW | FAST
HALF, QUARTER, FOUND = (
    Bandwidth(10_000, 20_000),
    Bandwidth(5_000, 20_000),
    Bandwidth(30_000, 50_000),
)
LIMITS = ((SLOW, HALF), (FAST, QUARTER))


@pytest.mark.parametrize(
    ("wanted", "pcpus", "expected"),
    [
        (SafeState(leave=True), {0}, Tuning(None, {0})),
        (SafeState(), {0}, Tuning(FOUND, ANY, 7)),
        (SafeState(), {0, 9}, Tuning(FOUND, {0, 9}, 7)),
        (SafeState(SLOW), {0}, Tuning(FOUND, {0}, 7)),
        (SafeState(SLOW), {0, 2}, Tuning(FOUND, SLOW, 7)),
        (SafeState(SLOW, LIMITS), {1}, Tuning(HALF, {1})),
        (SafeState(SLOW, LIMITS), {2}, Tuning(QUARTER, {2})),
        (SafeState(FAST, LIMITS), {0, 2}, Tuning(QUARTER, FAST)),
        (SafeState(None, LIMITS), {0, 2}, Tuning(None, {0, 2})),
    ],
    ids=[
        "left alone",
        "best effort: as found",
        "somebody else gave it other pCPUs",
        "on its core type",
        "back to its core type",
        "booked: the limit of where it is",
        "booked: moved by somebody",
        "booked: a move that was interrupted",
        "booked: nothing says where",
    ],
)
def test_the_safe_state(wanted, pcpus, expected):
    """A booking keeps its core type; best effort keeps to what libvirt allows."""
    vcpu = RecordedVcpu("/proc/1/task/2", "3", "/cg", 4, 2, ANY, Tuning(FOUND, ANY, 7), wanted)

    assert safe(vcpu, Tuning(None, frozenset(pcpus))) == expected


@pytest.mark.parametrize(
    ("now", "wanted", "expected"),
    [
        (Tuning(HALF, SLOW), Tuning(HALF, SLOW), ()),
        (Tuning(None, SLOW), Tuning(None, SLOW, 7), ()),
        (Tuning(HALF, SLOW, 7), Tuning(HALF, SLOW), (Step(bandwidth=HALF),)),
        (Tuning(HALF, SLOW), Tuning(QUARTER, FAST), (Step(bandwidth=QUARTER), Step(FAST))),
        (Tuning(QUARTER, FAST), Tuning(HALF, SLOW), (Step(SLOW), Step(bandwidth=HALF))),
        (Tuning(HALF, SLOW), Tuning(None, FAST), (Step(FAST), Step(bandwidth=None))),
    ],
)
def test_no_step_gives_more_than_both_states_do(now, wanted, expected):
    """A limit is lowered before a move, and raised after it."""
    assert steps(now, wanted) == expected
