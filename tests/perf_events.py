"""Software events, which every kernel can count, in the place of hardware events."""

from amp_nova.host.counters import perf
from amp_nova.host.counters.perf import Event

SOFTWARE = 1
TASK_CLOCK = Event("task clock", SOFTWARE, 1)
"""Nanoseconds on a CPU."""
STAND_INS = {
    "instructions": TASK_CLOCK,
    "cycles": Event("context switches", SOFTWARE, 3),
    "cache misses": Event("page faults", SOFTWARE, 2),
}


def open_software(event, tid, group, flags, read_format):
    """``perf.open_event`` for the event that stands in for a hardware event."""
    return perf.open_event(STAND_INS[event.name], tid, group, 0, read_format)
