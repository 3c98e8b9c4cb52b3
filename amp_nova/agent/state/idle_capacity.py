"""Notices between two decisions of a policy that the last one was overtaken by events.

A fast core idles when the vCPU that it was given goes to sleep, and whoever wakes up without a
place shares one with somebody else. Waiting for the next decision would waste the core for an
interval; and a guest that sleeps every other interval would have its turns just while it sleeps.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.model.observation import Observation, VcpuKey, VcpuReading
from amp_nova.model.topology import Topology
from amp_nova.policies.placing.core_shares import ACTIVE_MIN_RATIO

LOOK_S = 0.9
"""A shorter sleep is a pause: nothing is moved for it."""
BUSY_LEAST_RATIO = 0.75
"""Who wanted to run for so much of a look could use a faster core."""
WAIT_LEAST_RATIO = 0.2
"""Who has no place and waited for so much of a look needs one."""

Places = Mapping[VcpuKey, frozenset[int]]


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where a look begins: all vCPUs' counters at one moment."""

    time_ns: int
    readings: Mapping[VcpuKey, VcpuReading]


class Vacancies:
    """Looks at the counters of every cycle, each time back to the last mark that is old enough."""

    def __init__(self) -> None:
        self._marks: list[_Mark] = []
        """The last two, the newest first."""
        self._wanted: dict[VcpuKey, float] = {}
        self._waited: dict[VcpuKey, float] = {}

    def note(self, seen: Observation, readings: Mapping[VcpuKey, VcpuReading]) -> None:
        """Take note of the counters."""
        if any(mark.time_ns > seen.time_ns for mark in self._marks):  # a clock that went back
            self._marks.clear()
        old = [m for m in self._marks if seen.time_ns - m.time_ns >= LOOK_S * 1e9]
        self._wanted, self._waited = {}, {}
        if old:
            self._measure(old[0], seen.time_ns, readings)
        if old == self._marks:
            self._marks = [_Mark(seen.time_ns, readings), *self._marks[:1]]

    def _measure(self, since: _Mark, now_ns: int, readings: Mapping[VcpuKey, VcpuReading]) -> None:
        passed_ns = now_ns - since.time_ns
        for key, now in readings.items():
            before = since.readings.get(key)
            if before is not None and now.run_ns >= before.run_ns:
                wait_ns = max(0, now.wait_ns - before.wait_ns)
                self._wanted[key] = (now.run_ns - before.run_ns + wait_ns) / passed_ns
                self._waited[key] = wait_ns / passed_ns

    def wanted_ratio(self, key: VcpuKey) -> float:
        """Share of the last look that it wanted to run; 0 where that is not known."""
        return self._wanted.get(key, 0.0)

    def asleep(self, key: VcpuKey) -> bool:
        """Whether a vCPU slept through the last look."""
        return self._wanted.get(key, 1.0) < ACTIVE_MIN_RATIO

    def overtaken(self, topology: Topology, placed: Places, movable: Places) -> bool:
        """Whether a policy would hardly decide as it did.

        ``placed``: whom it put where, or found there with a booking; ``movable``: the pCPUs that
        each vCPU of its may use now.
        """
        homeless = movable.keys() - placed.keys()
        if any(self._waited.get(key, 0.0) >= WAIT_LEAST_RATIO for key in homeless):
            return True
        sleepers = [key for key in placed if self.asleep(key)]
        left = {at for key in sleepers if (at := _position(topology, placed[key])) is not None}
        if not left:
            return False
        for key in placed.keys() & movable.keys():
            at = _position(topology, placed[key])
            if at is None or self.wanted_ratio(key) < BUSY_LEAST_RATIO:
                continue
            faster = (topology.core_types[f].name for f in left if f > at)
            if any(movable[key] & topology.pcpus_of(name) for name in faster):
                return True
        return False


def _position(topology: Topology, pcpus: frozenset[int]) -> int | None:
    """Place of the one core type of some pCPUs, slowest first."""
    core_type = topology.only_type(pcpus)
    return None if core_type is None else topology.core_types.index(core_type)
