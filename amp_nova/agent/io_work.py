# SPDX-License-Identifier: Apache-2.0
"""Moves the I/O threads of domains that are insensitive to core speed to slow cores, and back.

The rule is ``profiling.io_overlap``. It is applied once per interval, through thread affinities.
These are read back every time, and an affinity that something else has set is left alone.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from amp_nova.exceptions import HypervisorUnavailable
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology
from amp_nova.ports import IoPort
from amp_nova.profiling import io_overlap
from amp_nova.profiling.io_overlap import Case, IoReading, IoUse, Rule

LOG = logging.getLogger(__name__)
IO_CYCLES = 2.5
"""Cycles between two samples, while samples decide where I/O threads run."""
FOREIGN = "something else has set the affinity of its I/O threads, which are left alone"


@dataclass(frozen=True, slots=True)
class IoDomain:
    """The I/O work of one domain after an interval.

    ``slow``: its threads are kept off fast cores; ``least_kept_ratio``: lower bound of
    the share of throughput that remains on slow cores; ``note``: why its threads are not moved, or
    could not be.
    """

    reading: IoReading
    case: Case
    use: IoUse | None
    slow: bool
    least_kept_ratio: float | None
    note: str | None


@dataclass(slots=True)
class _State:
    """One incarnation of a domain; ``last_set``: the affinities last set, by thread."""

    incarnation: str
    case: Case
    reading: IoReading | None = None
    last_set: dict[int, frozenset[int]] = field(default_factory=dict)
    note: str | None = None


class IoWork:
    """Applies the rule to all domains of the host.

    ``work``: as the option ``io_work``. ``marker``: a file that exists while threads may be away
    from home. It outlives the agent, so that an agent started in another mode moves them home.
    """

    def __init__(
        self,
        port: IoPort,
        work: str = "report",
        interval_s: float = IO_CYCLES,
        marker: Path | None = None,
    ) -> None:
        self.report: tuple[IoDomain, ...] | None = None
        """The domains after the last interval."""
        self._port, self._work, self._interval_s = port, work, interval_s
        self._marker = marker
        self._states: dict[str, _State] = {}
        self._due_s = 0.0
        self._restoring = work != "slow" and marker is not None and marker.exists()

    def due(self, now_s: float) -> bool:
        """Whether ``step`` would do anything."""
        return now_s >= self._due_s and (self._work != "off" or self._restoring)

    def step(self, topology: Topology, paused: Mapping[str, str], now_s: float) -> list[str]:
        """Sample and act if an interval has passed; returns a line for each domain that moved.

        ``paused``: instances that must not be changed, by UUID, with the reason.
        """
        if not self.due(now_s):
            return []
        self._due_s = now_s + self._interval_s
        if not io_overlap.slow_pcpus(topology):  # one core type: no choice
            self.report = None
            return []
        try:
            readings = self._port.read(topology)
        except HypervisorUnavailable:  # the control cycle reports it
            return []
        present = {r.resource for r in readings}
        self._states = {r: s for r, s in self._states.items() if r in present}
        lines: list[str] = []
        domains = tuple([self._domain(r, topology, paused, now_s, lines) for r in readings])
        if self._restoring and self._marker is not None:
            self._marker.unlink(missing_ok=True)
            self._restoring = False
        if self._work != "off":
            self.report = domains
        return lines

    def _domain(
        self,
        reading: IoReading,
        topology: Topology,
        paused: Mapping[str, str],
        now_s: float,
        lines: list[str],
    ) -> IoDomain:
        slow = io_overlap.off_fast_cores(reading, io_overlap.slow_pcpus(topology))
        state = self._states.get(reading.resource)
        if state is None or state.incarnation != reading.incarnation:
            # Threads that an earlier agent moved stay until their usage says otherwise.
            case = Case(insensitive=self._work == "slow" and slow)
            state = self._states[reading.resource] = _State(reading.incarnation, case)
        use = None if state.reading is None else io_overlap.use(state.reading, reading)
        acts = self._work == "slow" or self._restoring
        others = [t for t in reading.threads if t.pcpus != state.last_set.get(t.tid)]
        note = reading.failure or paused.get(reading.resource)
        if note is None and acts and not io_overlap.ours(others, topology):
            note = FOREIGN
        moves = note is None and self._work == "slow"
        state.case = io_overlap.judge(state.case, use, Rule(), now_s, moves=moves)
        if note is None and acts:
            note = self._move(state, reading, topology, lines)
        if note != state.note and note not in (None, *paused.values()):
            LOG.warning("%s: %s", reading.name, note)
        state.reading, state.note = reading, note
        speed = io_overlap.speed_ratio(topology)
        least_kept_ratio = io_overlap.least_kept_ratio(use, speed) if use and speed else None
        return IoDomain(reading, state.case, use, slow, least_kept_ratio, note)

    def _move(
        self, state: _State, reading: IoReading, topology: Topology, lines: list[str]
    ) -> str | None:
        """Set the affinities of a domain's threads; returns the error message if that fails."""
        case = state.case if self._work == "slow" else Case()
        wanted = {t.tid: io_overlap.wanted(t, topology, case) for t in reading.threads}
        moved = {t.tid: wanted[t.tid] for t in reading.threads if t.pcpus != wanted[t.tid]}
        if not moved:
            return None
        if self._marker is not None and not self._restoring:
            self._marker.touch()
        if (failure := self._port.move(reading.resource, moved)) is not None:
            return failure
        state.last_set = wanted
        # Threads that started since the last reading are moved without a log line.
        if state.reading is None or moved.keys() & {t.tid for t in state.reading.threads}:
            where = {f"pCPUs {cpulist.show(pcpus)}" for pcpus in moved.values()}
            why = "insensitive to core speed" if case.insensitive else "sensitive to core speed"
            if case.barred_until_s:
                why = f"it kept only {case.effect_ratio or 0.0:.0%} of its throughput on slow cores"
            to = " and ".join(sorted(where))
            lines.append(f"{reading.name}: I/O threads to {to} ({why})")
        return None


def because(report: tuple[IoDomain, ...] | None, resource: str) -> list[str]:
    """Sentences for ``amp-nova explain`` about an instance's I/O work."""
    domains = [d for d in report or () if d.reading.resource == resource]
    lines = []
    for domain in domains:
        usage = domain.use.combined_ratio if domain.use else None
        kind = "insensitive" if domain.case.insensitive else "sensitive"
        percent = "unknown" if usage is None else f"{usage:.0%} (above 100 %: insensitive)"
        where = "kept off fast cores" if domain.slow else "where its definition allows"
        lines.append(f"Its Combined Usage is {percent}; its I/O work is {kind} to core speed.")
        lines.append(f"Its I/O threads are {where}.")
        if domain.case.effect_ratio is not None:
            lines.append(f"On slow cores it kept {domain.case.effect_ratio:.0%} of its throughput.")
        if domain.note:
            lines.append(f"{domain.note[0].upper()}{domain.note[1:]}.")
    return lines
