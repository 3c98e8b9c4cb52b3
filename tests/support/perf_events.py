# SPDX-License-Identifier: Apache-2.0
"""Software events, which every kernel can count, in the place of hardware events."""

from amp_nova.host.counters import perf
from amp_nova.host.counters.perf import Event

SOFTWARE = 1
TASK_CLOCK = Event("task clock", SOFTWARE, 1)
"""Nanoseconds on a CPU; unlike CPU time, it includes what the machine's own host takes (steal)."""
PAGE_FAULTS = Event("page faults", SOFTWARE, 2)
STAND_INS = {
    "instructions": TASK_CLOCK,
    "cycles": Event("context switches", SOFTWARE, 3),
    "cache misses": PAGE_FAULTS,
}


def open_software(event, tid, group, flags, read_format):
    """``perf.open_event`` for the event that stands in for a hardware event."""
    return perf.open_event(STAND_INS[event.name], tid, group, 0, read_format)
