"""A vCPU thread's hardware counters: instructions, cycles and last-level cache misses.

One group of events for each set of counters of the machine (PMU). On a hybrid machine every core
type has a set of its own, which runs while the vCPU is on a core of that type: the sum over all
sets is what the vCPU did, and the time each ran is how long it was there. Scaling one of them up
by enabled over running time, as for counters that take turns, would count the same time twice.
On a machine with one set, time that it did not run is time that others had it, and is made up for.
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
    Event("instructions", TYPE_HARDWARE, perf.INSTRUCTIONS),
    Event("cycles", TYPE_HARDWARE, 0),
    Event("cache misses", TYPE_HARDWARE, 3),
)
"""What ``Counts`` holds, in its order. The first one must be had, the others are left out."""
SHARED_RATIO = 0.01
"""Time that others had the counters, over the time the vCPU ran, that is worth a word."""
_WRAP = 1 << 64
_UNEXCLUDABLE = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class GroupReading:
    """One group of events, cumulative: ``None`` for an event that it does not count."""

    enabled_ns: int
    running_ns: int
    values: tuple[int | None, ...]

    def since(self, before: "GroupReading") -> "GroupReading":
        """What came since; ``CountersUnavailable`` when it went backwards."""
        values = tuple(
            None if now is None or then is None else _gain(then, now)
            for then, now in zip(before.values, self.values, strict=True)
        )
        return GroupReading(
            _gain(before.enabled_ns, self.enabled_ns),
            _gain(before.running_ns, self.running_ns),
            values,
        )


def _gain(before: int, now: int) -> int:
    """The difference of two readings of a 64-bit counter, which may have wrapped."""
    gain = (now - before) % _WRAP
    if gain >= _WRAP // 2:
        raise CountersUnavailable("the hardware counters went backwards")
    return gain


class Tally:
    """Adds readings up; all of a vCPU's groups in the order of their PMUs."""

    def __init__(self, names: Sequence[str], events: int = len(EVENTS)) -> None:
        self.shared_ratio = 0.0
        """Share of the vCPU's running time, of late, in which it was not counted."""
        self._names = tuple(names)
        zero = GroupReading(0, 0, (0,) * events)
        self._last = (zero,) * len(self._names)
        self._totals: list[int | None] = [0] * events
        self._residency_ns = [0] * len(self._names)

    def add(self, now: Sequence[GroupReading]) -> Counts | None:
        """Everything so far; ``None`` while nothing is known of the latest part of it."""
        gains = [after.since(before) for before, after in zip(self._last, now, strict=True)]
        ran_ns = max(gain.enabled_ns for gain in gains)
        counted_ns = sum(gain.running_ns for gain in gains)
        if ran_ns:
            self.shared_ratio = max(0.0, 1.0 - counted_ns / ran_ns)
            if not counted_ns:  # the interval stays open until the counters had a turn
                return None
        estimate = len(gains) == 1 and self.shared_ratio > SHARED_RATIO
        for i, before in enumerate(self._totals):
            values = [gain.values[i] for gain in gains]
            known = [value for value in values if value is not None]
            whole = before is not None and len(known) == len(values)
            gained = sum(known) * ran_ns // counted_ns if estimate and counted_ns else sum(known)
            self._totals[i] = (before or 0) + gained if whole else None
        self._last = tuple(now)
        self._residency_ns = [
            t + gain.running_ns for t, gain in zip(self._residency_ns, gains, strict=True)
        ]
        instructions, cycles, misses = self._totals
        if instructions is None:
            raise CountersUnavailable("instructions are not counted")
        residency = zip(self._names, self._residency_ns, strict=True) if len(gains) > 1 else ()
        return Counts(instructions, cycles, misses, tuple(residency))


class PerfCounter:
    """The hardware counters of one vCPU thread.

    ``guest_only``: what KVM and QEMU do for the guest in this thread is left out, as far as the
    PMU can; ``note`` says what is not as it should be.
    """

    source = "perf"

    def __init__(
        self,
        tid: int,
        pmus: Sequence[Pmu],
        *,
        guest_only: bool = True,
        events: Sequence[Event] = EVENTS,
        root: Path = Path("/"),
        open_event: Callable[..., int] = perf.open_event,
    ) -> None:
        self._root = root
        self._open_event = open_event
        self._doubts: list[str] = []
        self._fds: list[int] = []
        self._groups: list[tuple[int, tuple[bool, ...]]] = []
        try:
            for pmu in pmus:
                self._open(tid, pmu, events, perf.EXCLUDE_HOST if guest_only else 0)
        except OSError as exc:
            self.close()
            on = f" on {pmu.name}" if len(pmus) > 1 else ""
            raise CountersUnavailable(perf.why(exc, events[0].name + on, root)) from exc
        self._tally = Tally([pmu.name for pmu in pmus], len(events))

    def _open(self, tid: int, pmu: Pmu, events: Sequence[Event], flags: int) -> None:
        read_format = perf.TIMES | perf.GROUP
        first, *others = (pmu.event(event) for event in events)
        try:
            leader = self._open_event(first, tid, -1, flags, read_format)
        except OSError as exc:
            if not flags or exc.errno not in _UNEXCLUDABLE:
                raise
            flags = 0
            leader = self._open_event(first, tid, -1, flags, read_format)
            self._doubt("the PMU cannot tell guest from host: the host's work for it counts too")
        self._fds.append(leader)
        here = [True]
        for event in others:
            try:
                self._fds.append(self._open_event(event, tid, leader, flags, read_format))
                here.append(True)
            except OSError as exc:
                if exc.errno == errno.ESRCH:
                    raise
                here.append(False)
                self._doubt(f"no {event.name}: {perf.why(exc, event.name, self._root)}")
        self._groups.append((leader, tuple(here)))

    def _doubt(self, sentence: str) -> None:
        if sentence not in self._doubts:
            self._doubts.append(sentence)

    @property
    def note(self) -> str | None:
        """What is not as it should be."""
        doubts = self._doubts
        if self._tally.shared_ratio > SHARED_RATIO:
            what = "left out" if len(self._groups) > 1 else "estimated"
            doubts = [*doubts, f"others use the hardware counters at times: those are {what}"]
        return "; ".join(doubts) or None

    def read(self) -> Counts | None:
        """Counts so far, ``None`` while others hold the PMU; ``CountersUnavailable`` if lost."""
        readings = []
        for leader, here in self._groups:
            count = sum(here)
            raw = os.read(leader, 24 + 8 * count)
            if len(raw) < 24 + 8 * count:  # the kernel gave the group up
                raise CountersUnavailable("the kernel took the hardware counters away")
            _, enabled_ns, running_ns, *found = struct.unpack(f"={3 + count}Q", raw)
            values = iter(found)
            readings.append(
                GroupReading(
                    enabled_ns, running_ns, tuple(next(values) if h else None for h in here)
                )
            )
        return self._tally.add(readings)

    def close(self) -> None:
        """Give the descriptors back."""
        while self._fds:
            with contextlib.suppress(OSError):
                os.close(self._fds.pop())
        self._groups = []
