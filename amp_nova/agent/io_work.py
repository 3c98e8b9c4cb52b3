# SPDX-License-Identifier: Apache-2.0
"""Moves the I/O threads of domains that are insensitive to core speed to slow cores, and back.

The rule is ``profiling.io_overlap``. It is applied once per interval, through thread affinities.
These are read back every time, and an affinity that something else has set is left alone.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from amp_nova.control.foreign_changes import Backoff
from amp_nova.exceptions import HypervisorUnavailable
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology
from amp_nova.ports import IoPort
from amp_nova.profiling import io_overlap
from amp_nova.profiling.io_overlap import Case, IoReading, IoUse, Rule

LOG = logging.getLogger(__name__)
IO_CYCLES = 2.5
"""Cycles between two samples, while samples decide where I/O threads run."""
FOREIGN = "something else sets the affinity of its I/O threads"


@dataclass(frozen=True, slots=True)
class IoSettings:
    """How I/O work is handled; see the option ``io_work``."""

    work: str = "report"
    interval_s: float = IO_CYCLES


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


@dataclass(frozen=True, slots=True)
class _Cores:
    """The host, its slow pCPUs, and the speed of the fastest core type over the slowest."""

    topology: Topology
    slow_pcpus: frozenset[int]
    speed_ratio: float | None


class _State:
    """State of one incarnation of a domain; ``expected``: the affinities last set, by thread."""

    def __init__(self, incarnation: str, case: Case) -> None:
        self.incarnation = incarnation
        self.case = case
        self.reading: IoReading | None = None
        self.expected: dict[int, frozenset[int]] | None = None
        self.repairs = Backoff()
        self.note: str | None = None


class IoWork:
    """Applies the rule to all domains of the host.

    ``marker``: a file that exists while threads may be away from home. It outlives the agent, so
    that an agent started in another mode moves them home.
    """

    def __init__(self, port: IoPort, settings: IoSettings, marker: Path | None = None) -> None:
        self.report: tuple[IoDomain, ...] | None = None
        """The domains after the last interval."""
        self._port = port
        self._settings = settings
        self._marker = marker
        self._states: dict[str, _State] = {}
        self._due_s = 0.0
        self._restoring = settings.work != "slow" and marker is not None and marker.exists()

    def due(self, now_s: float) -> bool:
        """Whether ``step`` would do anything."""
        return now_s >= self._due_s and (self._settings.work != "off" or self._restoring)

    def step(self, topology: Topology, paused: Mapping[str, str], now_s: float) -> list[str]:
        """Sample and act if an interval has passed; returns a line for each domain that moved.

        ``paused``: instances that must not be changed, by UUID, with the reason.
        """
        if not self.due(now_s):
            return []
        self._due_s = now_s + self._settings.interval_s
        slow_pcpus = io_overlap.slow_pcpus(topology)
        if not slow_pcpus:  # one core type: no choice
            self.report = None
            return []
        cores = _Cores(topology, slow_pcpus, io_overlap.speed_ratio(topology))
        try:
            readings = self._port.read(topology)
        except HypervisorUnavailable:  # the control cycle reports it
            return []
        present = {r.resource for r in readings}
        self._states = {r: s for r, s in self._states.items() if r in present}
        lines: list[str] = []
        domains = tuple([self._domain(r, cores, paused, now_s, lines) for r in readings])
        if self._restoring and self._marker is not None:
            self._marker.unlink(missing_ok=True)
            self._restoring = False
        if self._settings.work != "off":
            self.report = domains
        return lines

    def _domain(
        self,
        reading: IoReading,
        cores: _Cores,
        paused: Mapping[str, str],
        now_s: float,
        lines: list[str],
    ) -> IoDomain:
        slow = io_overlap.off_fast_cores(reading, cores.slow_pcpus)
        state = self._states.get(reading.resource)
        if state is None or state.incarnation != reading.incarnation:
            # Threads that an earlier agent moved stay until their usage says otherwise.
            case = Case(insensitive=self._settings.work == "slow" and slow)
            state = self._states[reading.resource] = _State(reading.incarnation, case)
        use = None if state.reading is None else io_overlap.use(state.reading, reading)
        note = reading.failure or self._excluded(state, reading, cores.topology, paused, now_s)
        moves = note is None and self._settings.work == "slow"
        state.case = io_overlap.judge(state.case, use, Rule(), now_s, moves=moves)
        if note is None:
            note = self._move(state, reading, cores.topology, lines)
        if note != state.note and note not in (None, *paused.values()):
            LOG.warning("%s: %s", reading.name, note)
        state.reading, state.note = reading, note
        speed = cores.speed_ratio
        least_kept_ratio = io_overlap.least_kept_ratio(use, speed) if use and speed else None
        return IoDomain(reading, state.case, use, slow, least_kept_ratio, note)

    def _excluded(
        self,
        state: _State,
        reading: IoReading,
        topology: Topology,
        paused: Mapping[str, str],
        now_s: float,
    ) -> str | None:
        """Why the threads of a domain must not be moved now."""
        if (why := paused.get(reading.resource)) is not None:
            state.expected = None
            return why
        if not (self._settings.work == "slow" or self._restoring):
            return None
        if state.expected is None:
            return None if io_overlap.ours(reading.threads, topology) else FOREIGN
        homes = {t.tid: t.home for t in state.reading.threads} if state.reading else {}
        if any(
            # If its home changed as well, libvirt itself has pinned the thread.
            t.pcpus != state.expected.get(t.tid, t.pcpus) and homes.get(t.tid) == t.home
            for t in reading.threads
        ):
            state.repairs = state.repairs.repaired(now_s)
        if now_s < state.repairs.excluded_until_s:
            state.expected = {t.tid: t.pcpus for t in reading.threads}
            return f"{FOREIGN}: run 'amp-nova pause' before you set it by hand"
        return None

    def _move(
        self, state: _State, reading: IoReading, topology: Topology, lines: list[str]
    ) -> str | None:
        """Set the affinities of a domain's threads; returns the error message if that fails."""
        if self._settings.work == "slow":
            state.expected = {
                t.tid: io_overlap.wanted(t, topology, state.case) for t in reading.threads
            }
        elif self._restoring:
            state.expected = {t.tid: t.home for t in reading.threads}
        else:
            return None
        expected = state.expected
        moved = {t.tid: expected[t.tid] for t in reading.threads if t.pcpus != expected[t.tid]}
        if not moved:
            return None
        if self._marker is not None and not self._restoring:
            self._marker.touch()
        failure = self._port.move(reading.resource, moved)
        if failure is not None:
            state.expected = {}
            return failure
        # Threads that started since the last reading are moved without a log line.
        if state.reading is None or moved.keys() & {t.tid for t in state.reading.threads}:
            lines.append(_line(reading, moved, state.case))
        return None


def _line(reading: IoReading, moved: Mapping[int, frozenset[int]], case: Case) -> str:
    where = " and ".join(sorted({f"pCPUs {cpulist.show(pcpus)}" for pcpus in moved.values()}))
    why = "insensitive to core speed" if case.insensitive else "sensitive to core speed"
    if case.barred_until_s:
        why = f"it kept only {case.effect_ratio or 0.0:.0%} of its throughput on slow cores"
    return f"{reading.name}: I/O threads to {where} ({why})"


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
