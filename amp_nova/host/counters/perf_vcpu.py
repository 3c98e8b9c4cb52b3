# SPDX-License-Identifier: Apache-2.0
"""A vCPU thread's hardware counters: instructions, cycles and last-level cache misses.

There is one group of events for each PMU. On a hybrid machine every core type has its own PMU,
which counts while the vCPU is on a core of that type. The sum over the PMUs is what the vCPU did.
Scaling a group by enabled over running time, as for multiplexed counters, would count time on other
types twice. On a machine with one PMU, the group does not run while others use the counters, and
counts are scaled.
"""

import contextlib
import errno
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.counters import perf
from amp_nova.host.counters.perf import TYPE_HARDWARE, Event, Pmu
from amp_nova.model.observation import Counts

EVENTS = (
    perf.INSTRUCTIONS,
    perf.CYCLES,
    Event("cache misses", TYPE_HARDWARE, 3),
)
"""The fields of ``Counts``, in order. The first is required, the others are optional."""
SHARED_RATIO = 0.01
"""``note`` mentions uncounted time above this share of the vCPU's running time."""
_CANNOT_EXCLUDE = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A cumulative reading of one group; ``None`` for an event that is not counted."""

    enabled_ns: int
    running_ns: int
    values: tuple[int | None, ...]


def _gains(before: GroupReading, now: GroupReading) -> tuple[int | None, ...]:
    """The increase of each value; ``CountersUnavailable`` if a counter went backwards."""
    pairs = zip(before.values, now.values, strict=True)
    gains = tuple(None if a is None or b is None else b - a for a, b in pairs)
    times = now.running_ns - before.running_ns, now.enabled_ns - before.enabled_ns
    if min(*times, *(gain for gain in gains if gain is not None)) < 0:
        raise CountersUnavailable("the hardware counters went backwards")
    return gains


class Tally:
    """Accumulates readings of a vCPU's groups, one for each PMU."""

    def __init__(self, pmus: int) -> None:
        self.shared_ratio = 0.0
        """Share of the vCPU's latest running time in which it was not counted."""
        self._last = (GroupReading(0, 0, (0,) * len(EVENTS)),) * pmus
        self._totals: list[int | None] = [0] * len(EVENTS)
        self._run_ns = 0

    def add(self, now: Sequence[GroupReading]) -> Counts | None:
        """The totals; ``None`` if the vCPU has run without being counted since the last reading."""
        pairs = list(zip(self._last, now, strict=True))
        events = zip(*(_gains(before, after) for before, after in pairs), strict=True)
        ran_ns = max(after.enabled_ns - before.enabled_ns for before, after in pairs)
        counted_ns = sum(after.running_ns - before.running_ns for before, after in pairs)
        if ran_ns:
            self.shared_ratio = max(0.0, 1.0 - counted_ns / ran_ns)
            if not counted_ns:  # the interval continues until the counters run
                return None
        estimate = len(pairs) == 1 and self.shared_ratio > SHARED_RATIO and counted_ns > 0
        for i, gains in enumerate(events):
            deltas = [gain for gain in gains if gain is not None]
            gained = sum(deltas) * ran_ns // counted_ns if estimate else sum(deltas)
            before = self._totals[i]
            whole = before is not None and len(deltas) == len(gains)
            self._totals[i] = (before or 0) + gained if whole else None
        self._last = tuple(now)
        self._run_ns += ran_ns
        instructions, cycles, misses = self._totals
        if instructions is None:
            raise CountersUnavailable("instructions are not counted")
        return Counts(instructions, cycles, misses, self._run_ns)


class PerfCounter:
    """The hardware counters of one vCPU thread.

    Counts guest execution only, if the PMU can exclude what KVM and QEMU do in the thread.
    Raises ``CountersUnavailable`` if instructions cannot be counted on every PMU.
    """

    source = "perf"

    def __init__(
        self,
        tid: int,
        pmus: Sequence[Pmu],
        root: Path = Path("/"),
        open_event: Callable[[Event, int, int, int, int], int] = perf.open_event,
    ) -> None:
        self._root = root
        self._open_event = open_event
        self._limitations: list[str] = []
        self._fds: list[int] = []
        self._groups: list[tuple[int, tuple[bool, ...]]] = []
        try:
            for pmu in pmus:
                self._open(tid, pmu)
        except OSError as exc:
            self.close()
            on = f" on {pmu.name}" if len(pmus) > 1 else ""
            raise CountersUnavailable(perf.why(exc, EVENTS[0].name + on, root)) from exc
        self._tally = Tally(len(pmus))

    def _open(self, tid: int, pmu: Pmu) -> None:
        flags, read_format = perf.EXCLUDE_HOST, perf.TIMES | perf.GROUP
        first, *others = (pmu.event(event) for event in EVENTS)
        try:
            leader = self._open_event(first, tid, -1, flags, read_format)
        except OSError as exc:
            if exc.errno not in _CANNOT_EXCLUDE:
                raise
            flags = 0
            leader = self._open_event(first, tid, -1, flags, read_format)
            self._limited(
                "the PMU cannot tell guest from host: the host's work for the guest counts too"
            )
        self._fds.append(leader)
        opened = [True]
        for event in others:
            try:
                self._fds.append(self._open_event(event, tid, leader, flags, read_format))
                opened.append(True)
            except OSError as exc:
                if exc.errno == errno.ESRCH:
                    raise
                opened.append(False)
                self._limited(f"no {event.name}: {perf.why(exc, event.name, self._root)}")
        self._groups.append((leader, tuple(opened)))

    def _limited(self, sentence: str) -> None:
        if sentence not in self._limitations:
            self._limitations.append(sentence)

    @property
    def note(self) -> str | None:
        """The limitations of this counter, ``None`` if there are none."""
        limitations = self._limitations
        if self._tally.shared_ratio > SHARED_RATIO:
            what = "omitted" if len(self._groups) > 1 else "estimated"
            limitations = [
                *limitations,
                f"others use the counters at times; counts of those times are {what}",
            ]
        return "; ".join(limitations) or None

    def read(self) -> Counts | None:
        """Counts since the counter was opened.

        ``None`` while others occupy the PMU. Raises ``CountersUnavailable`` if the kernel took the
        counters away.
        """
        readings = []
        for leader, opened in self._groups:
            count = sum(opened)
            raw = os.read(leader, 24 + 8 * count)
            if len(raw) < 24 + 8 * count:  # the group is in its error state
                raise CountersUnavailable("the kernel took the hardware counters away")
            _, enabled_ns, running_ns, *values = struct.unpack(f"={3 + count}Q", raw)
            counts = iter(values)
            readings.append(
                GroupReading(
                    enabled_ns, running_ns, tuple(next(counts) if o else None for o in opened)
                )
            )
        return self._tally.add(readings)

    def close(self) -> None:
        while self._fds:
            with contextlib.suppress(OSError):
                os.close(self._fds.pop())
        self._groups = []
