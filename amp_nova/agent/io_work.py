"""Moves the I/O work of domains that are insensitive to it to slow cores, and back.

The rule is ``profiling.io_overlap``; here it is asked once an interval, and what it says is carried
out by thread affinity. The host holds the truth: affinities are read back every time, and one that
somebody else set is left alone.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from amp_nova.control.foreign_changes import Backoff
from amp_nova.exceptions import HypervisorUnavailable
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology
from amp_nova.ports import IoPort
from amp_nova.profiling import io_overlap as rule_of
from amp_nova.profiling.io_overlap import Case, IoReading, IoUse, Rule

LOG = logging.getLogger(__name__)
FOREIGN = "somebody else keeps its I/O threads where they are"


@dataclass(frozen=True, slots=True)
class IoSettings:
    """How I/O work is treated; see the options ``io_work`` and ``io_sensitive``."""

    work: str = "report"
    sensitive_fast: bool = False
    interval_s: float = 2.5
    rule: Rule = field(default_factory=Rule)
    repairs_max: int = 3
    dry_run: bool = False

    @property
    def moves(self) -> bool:
        """Whether anything is moved at all."""
        return self.work == "slow" and not self.dry_run


@dataclass(frozen=True, slots=True)
class IoDomain:
    """One domain's I/O work after an interval.

    ``slow``: it is kept off fast cores; ``least_kept_ratio``: estimate of the throughput that a
    move to slow cores keeps at the least; ``freed_s``: estimate of the fast-core time freed so far.
    """

    reading: IoReading
    case: Case
    use: IoUse | None
    slow: bool
    least_kept_ratio: float | None
    freed_s: float
    note: str | None
    """Why it is left as it is, or could not be moved."""


@dataclass(frozen=True, slots=True)
class IoReport:
    """What the last interval found, and what was counted since the agent began."""

    domains: tuple[IoDomain, ...]
    moves: Mapping[str, int]
    """Domains moved, by where to: ``slow``, ``fast`` or ``home``."""
    failures: Mapping[str, int]
    drift: int


class _State:
    """What is remembered of one life of a domain."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.reading: IoReading | None = None
        self.case = Case()
        self.expected: dict[int, frozenset[int]] | None = None
        self.quarrel = Backoff()
        self.freed_s = 0.0
        self.note: str | None = None


class IoWork:
    """``marker``: a file that says threads were moved, which outlives the agent."""

    def __init__(self, port: IoPort, settings: IoSettings, marker: Path | None = None) -> None:
        self.report: IoReport | None = None
        self._port = port
        self._settings = settings
        self._marker = marker
        self._states: dict[str, _State] = {}
        self._due_s = 0.0
        self._moves: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._drift = 0
        # Another mode than before: what was moved goes home.
        self._homeward = not settings.moves and marker is not None and marker.exists()

    def due(self, now_s: float) -> bool:
        """Whether ``step`` would look."""
        return now_s >= self._due_s and (self._settings.work != "off" or self._homeward)

    def step(self, topology: Topology, held: Mapping[str, str], now_s: float) -> list[str]:
        """Look and act when an interval has passed; a line for each domain that was moved."""
        if not self.due(now_s):
            return []
        self._due_s = now_s + self._settings.interval_s
        if not rule_of.slow_pcpus(topology):  # one core type: nothing to choose, nothing to read
            self.report = None
            return []
        try:
            readings = self._port.read(topology)
        except HypervisorUnavailable:  # the control cycle says so
            return []
        here = {r.resource for r in readings}
        self._states = {r: s for r, s in self._states.items() if r in here}
        lines: list[str] = []
        domains = tuple(self._domain(r, topology, held, now_s, lines) for r in readings)
        if self._homeward and not self._settings.dry_run and self._marker is not None:
            self._marker.unlink(missing_ok=True)
            self._homeward = False
        if self._settings.work != "off":
            self.report = IoReport(domains, dict(self._moves), dict(self._failures), self._drift)
        return lines

    def _domain(
        self,
        reading: IoReading,
        topology: Topology,
        held: Mapping[str, str],
        now_s: float,
        lines: list[str],
    ) -> IoDomain:
        state = self._states.get(reading.resource)
        if state is None or state.incarnation != reading.incarnation:
            state = self._states[reading.resource] = _State(reading.incarnation)
            # What another life of the agent moved stays until the usage says otherwise.
            adopted = self._settings.work == "slow" and rule_of.off_fast_cores(reading, topology)
            state.case = Case(insensitive=adopted)
        before, speed, used = state.reading, rule_of.speed_ratio(topology), None
        if before is not None:
            used = rule_of.use(before, reading)
            state.freed_s += rule_of.freed_s(before, reading, topology, speed) or 0.0
        note = reading.failure or self._left_alone(state, reading, topology, held, now_s)
        moves = self._settings.moves and note is None
        state.case = rule_of.judge(state.case, used, self._settings.rule, now_s, moves=moves)
        if note is None:
            note = self._act(state, reading, topology, lines)
        if note != state.note and note not in (None, *held.values()):
            LOG.warning("%s: %s", reading.name, note)
        state.reading, state.note = reading, note
        kept = rule_of.least_kept_ratio(used, speed) if used and speed else None
        slow = rule_of.off_fast_cores(reading, topology)
        return IoDomain(reading, state.case, used, slow, kept, state.freed_s, note)

    def _left_alone(
        self,
        state: _State,
        reading: IoReading,
        topology: Topology,
        held: Mapping[str, str],
        now_s: float,
    ) -> str | None:
        """Why nothing of it may be changed now; what somebody else changed is counted."""
        if (why := held.get(reading.resource)) is not None:
            state.expected = None
            return why
        if not (self._settings.work == "slow" or self._homeward):
            return None
        if state.expected is None:
            return None if rule_of.ours(reading.threads, topology) else FOREIGN
        homes = {t.tid: t.home for t in state.reading.threads} if state.reading else {}
        for thread in reading.threads:
            kept = state.expected.get(thread.tid, thread.pcpus)
            # A new home is libvirt's doing: it pins the threads itself, and says so.
            if kept != thread.pcpus and homes.get(thread.tid) == thread.home:
                self._drift += 1
                state.quarrel = state.quarrel.repaired(now_s, self._settings.repairs_max)
                break
        if now_s < state.quarrel.excluded_until_s:
            state.expected = {t.tid: t.pcpus for t in reading.threads}
            return f"{FOREIGN}: use 'amp-nova pause' to do so by hand"
        return None

    def _act(
        self, state: _State, reading: IoReading, topology: Topology, lines: list[str]
    ) -> str | None:
        """Give threads the affinity they shall have; why that failed, if it did."""
        threads, fast = reading.threads, self._settings.sensitive_fast
        if self._settings.work == "slow":
            shall = {
                t.tid: rule_of.wanted(t, topology, state.case, sensitive_fast=fast) for t in threads
            }
        elif self._homeward:
            shall = {t.tid: t.home for t in threads}
        else:
            return None
        moved = {t.tid: shall[t.tid] for t in threads if t.pcpus != shall[t.tid]}
        state.expected = shall
        if not moved:
            return None
        if self._settings.dry_run:
            lines.append(_line(reading, moved, state.case))
            state.expected = None
            return None
        if self._marker is not None and not self._homeward:
            self._marker.touch()
        failure = self._port.move(reading.resource, moved)
        if failure is not None:
            self._failures[failure.reason] += 1
            state.expected = {}
            return failure.message
        # Threads that began on their own are put in their place without a word.
        if state.reading is None or moved.keys() & {t.tid for t in state.reading.threads}:
            self._moves["slow" if state.case.insensitive else "fast" if fast else "home"] += 1
            lines.append(_line(reading, moved, state.case))
        return None


def _line(reading: IoReading, moved: Mapping[int, frozenset[int]], case: Case) -> str:
    where = " and ".join(sorted({f"pCPUs {cpulist.show(pcpus)}" for pcpus in moved.values()}))
    why = "insensitive to core speed" if case.insensitive else "sensitive to core speed"
    if case.barred_until_s:
        why = f"slow cores left it {case.effect_ratio or 0.0:.0%} of its throughput"
    return f"{reading.name}: I/O threads to {where} ({why})"


def because(report: IoReport | None, resource: str) -> list[str]:
    """What ``explain`` says of an instance's I/O work."""
    found = [d for d in report.domains if d.reading.resource == resource] if report else []
    lines = []
    for domain in found:
        usage = domain.use.combined_ratio if domain.use else None
        kind = "insensitive" if domain.case.insensitive else "sensitive"
        said = "not known" if usage is None else f"{usage:.0%} (above 100 %: insensitive)"
        where = "off fast cores" if domain.slow else "where its definition leaves them"
        lines.append(
            f"Its Combined Usage is {said}; its I/O work is taken for {kind} to core speed."
        )
        lines.append(f"Its I/O threads are kept {where}.")
        if domain.case.effect_ratio is not None:
            effect = domain.case.effect_ratio
            lines.append(f"On slow cores it kept {effect:.0%} of its throughput.")
        if domain.note:
            lines.append(f"{domain.note[0].upper()}{domain.note[1:]}.")
    return lines
