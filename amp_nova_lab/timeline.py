# SPDX-License-Identifier: Apache-2.0
"""Simulated time: advances from event to event and keeps every vCPU's share up to date.

An event is a guest that starts or stops wanting pCPUs, a new phase, finished work, the end of a
wait, or a clock that changes. Between two events all rates are constant, so results are exact.

How fast a pCPU is depends on busy siblings and slow clocks as well. Siblings of a core run whenever
they have work, regardless of each other, so a thread meets a busy sibling for the share of its time
that this sibling is busy.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from amp_nova.hardware.effective_speed import kept_ratio, slowing_siblings
from amp_nova.model.topology import CoreType, Topology
from amp_nova_lab.guest import Behaviour, GuestWork, Rate, RunningShare, SimGuest, SimVcpu
from amp_nova_lab.programs import begin
from amp_nova_lab.scenarios.hosts import Clocks


class PCpuSpeeds:
    """The speed of every pCPU, given what runs on all of them."""

    def __init__(self, topology: Topology, clocks: Clocks) -> None:
        """``clocks``: the phases of the clock of core types, by name."""
        types: tuple[CoreType, ...] = topology.core_types
        position = {t.name: at for at, t in enumerate(types)}
        self._type_of = {p.id: position[p.core_type] for p in topology.pcpus}
        self._factor = [t.smt_busy_factor for t in types]
        self._siblings = slowing_siblings(topology)
        self.clock = dict.fromkeys(range(len(types)), 1.0)
        """The ratio of each core type, by position, to its calibrated clock."""
        self._busy: dict[int, float] = {}
        self._ran_s = dict.fromkeys(self._siblings, 0.0)
        self._met_s = 0.0
        self._clocks = {position[name]: phases for name, phases in clocks.items()}

    @property
    def vary(self) -> bool:
        """Whether speeds depend on anything but the core type."""
        return bool(self._siblings or self._clocks)

    def clock_changes(self) -> Iterator[tuple[float, Mapping[int, float]]]:
        """When clocks change, in order of time, and the ratios from then on by core type."""
        due = dict.fromkeys(self._clocks, (0.0, 0))
        while due:
            now_s = min(at_s for at_s, _ in due.values())
            changed = {}
            for at, (at_s, number) in due.items():
                if at_s <= now_s:
                    phase = self._clocks[at][number % len(self._clocks[at])]
                    changed[at] = phase.clock_ratio
                    due[at] = at_s + phase.for_s, number + 1
            yield now_s, changed

    def _accrue(self, now_s: float) -> None:
        for pcpu in self._ran_s:
            self._ran_s[pcpu] += min(1.0, self._busy.get(pcpu, 0.0)) * (now_s - self._met_s)
        self._met_s = now_s

    def idle_ns(self, now_s: float) -> dict[int, int]:
        """The time that each pCPU with a sibling that it slows down has been idle."""
        self._accrue(now_s)
        return {pcpu: round((now_s - ran_s) * 1e9) for pcpu, ran_s in self._ran_s.items()}

    def meet(self, shares: Iterable[RunningShare], now_s: float) -> None:
        """Take note of what runs where from now on."""
        self._accrue(now_s)
        self._busy = {}
        for share in shares:
            for pcpu, cores in share.cores.items():
                self._busy[pcpu] = self._busy.get(pcpu, 0.0) + cores

    def rates(self, shares: Mapping[int, float]) -> tuple[Rate, ...]:
        """A vCPU's shares of pCPUs, by core type."""
        if len(shares) == 1 and not self.vary:  # the common case, without the arithmetic
            ((pcpu, cores),) = shares.items()
            return (Rate(self._type_of[pcpu], cores),)
        by_type: dict[int, list[float]] = {}
        for pcpu, cores in shares.items():
            at = self._type_of[pcpu]
            kept = 1.0
            if self.vary:
                kept = kept_ratio(self._factor[at], self._busy_beside(pcpu), self.clock[at])
            sums = by_type.setdefault(at, [0.0, 0.0])
            sums[0] += cores
            sums[1] += cores * kept
        return tuple(
            Rate(at, cores, kept / cores if cores > 0.0 else 1.0, self.clock[at])
            for at, (cores, kept) in by_type.items()
        )

    def _busy_beside(self, pcpu: int) -> float:
        idle = 1.0
        for sibling in self._siblings.get(pcpu, ()):
            idle *= 1.0 - min(1.0, self._busy.get(sibling, 0.0))
        return 1.0 - idle


TURN, REACHED, CLOCK = 0, 1, 2
Clock = Mapping[int, float]
"""Ratios of core types, by position, to their calibrated clock."""
What = Behaviour | SimVcpu | Clock


class HostScheduler(Protocol):
    """Decides which of the runnable vCPUs run where, and for what share of time."""

    def wake(self, vcpu: SimVcpu) -> None:
        """A vCPU became runnable."""

    def sleep(self, vcpu: SimVcpu) -> None:
        """A vCPU is no longer runnable."""

    def changed(self, vcpu: SimVcpu) -> None:
        """A runnable vCPU has a new affinity, limit or class."""

    def reschedule(self) -> Mapping[SimVcpu, RunningShare]:
        """Decide; returns every share that may have changed."""
        ...


class Timeline:
    """The clock of a simulated host and what happens on it."""

    def __init__(self, scheduler: HostScheduler, speeds: PCpuSpeeds) -> None:
        self.now_s = 0.0
        self.scheduler = scheduler
        self._speeds = speeds
        self._clock_changes = speeds.clock_changes()
        self._shares: dict[SimVcpu, RunningShare] = {}
        """The shares of all runnable vCPUs; kept only if speeds vary."""
        self._events: list[tuple[float, int, int, int, What]] = []
        self._stale: dict[SimVcpu, None] = {}
        """vCPUs that may have to start or stop running."""
        self._expect_clock()

    def idle_ns(self) -> dict[int, int]:
        """The time that each pCPU with a sibling that it slows down has been idle."""
        return self._speeds.idle_ns(self.now_s)

    def start(self, guest: SimGuest) -> None:
        """Begin a guest's programs and turns; its vCPUs run once time advances."""
        begin(guest)
        self._stale.update(dict.fromkeys(guest.vcpus))
        for behaviour in guest.behaviours:
            self._expect_turn(behaviour)

    def stop(self, guest: SimGuest) -> None:
        """End a guest permanently."""
        guest.removed = True
        for vcpu in guest.vcpus:
            vcpu.accrue(self.now_s)
            vcpu.work.done = True
            self._stale[vcpu] = None

    def advance(self, until_s: float) -> None:
        """Let time pass."""
        self._reschedule()
        while self._due(until_s):
            self.now_s = max(self.now_s, self._events[0][0])
            while self._due(self.now_s):
                what = heapq.heappop(self._events)[-1]
                if isinstance(what, Behaviour):
                    self._turn(what)
                elif isinstance(what, SimVcpu):
                    self._reached(what)
                else:
                    self._speeds.clock |= what
                    self._expect_clock()
            self._reschedule()
        self.now_s = until_s

    def _due(self, until_s: float) -> bool:
        """Whether something happens until then; discards forecasts that were made again since.

        If those moved time on, forecasts would be made again, later by rounding errors, for ever.
        """
        while self._events and self._events[0][0] <= until_s:
            *_, version, what = self._events[0]
            latest = what.work if isinstance(what, SimVcpu) else what
            if not isinstance(latest, GuestWork | Behaviour) or version == latest.version:
                return True
            heapq.heappop(self._events)
        return False

    def _expect_clock(self) -> None:
        if (upcoming := next(self._clock_changes, None)) is not None:
            heapq.heappush(self._events, (upcoming[0], CLOCK, 0, 0, upcoming[1]))

    def _turn(self, behaviour: Behaviour) -> None:
        if behaviour.vcpus[0].guest.removed:
            return
        for vcpu in behaviour.vcpus:
            if vcpu.counters.runnable:
                vcpu.accrue(self.now_s)
            self._stale[vcpu] = None
        behaviour.next()
        self._expect_turn(behaviour)

    def _expect_turn(self, behaviour: Behaviour) -> None:
        if (upcoming := behaviour.upcoming) is not None:
            at_s, order = behaviour.started_s + upcoming.at_s, behaviour.vcpus[0].order
            heapq.heappush(self._events, (at_s, TURN, order, behaviour.version, behaviour))

    def _reached(self, vcpu: SimVcpu) -> None:
        vcpu.accrue(self.now_s)
        work, behaviour = vcpu.work, vcpu.work.behaviour
        if work.done:
            return
        if not work.blocked and behaviour.ends_ref_s < work.target_ref_s:
            work.progress_ref_s = behaviour.ends_ref_s
            behaviour.end_phase(self.now_s)
            self._expect_turn(behaviour)
            self._stale[vcpu] = None
            return
        for affected in vcpu.guest.reached(vcpu, self.now_s):
            affected.accrue(self.now_s)
            self._stale[affected] = None

    def _reschedule(self) -> None:
        """Let vCPUs sleep and wake, divide the pCPUs and forecast when targets are reached."""
        stale = sorted(self._stale, key=lambda v: v.order)
        self._stale.clear()
        self._let_sleep_and_wake(stale)
        affected = dict.fromkeys(stale)
        shares = self.scheduler.reschedule()
        if self._speeds.vary:  # the speed of an unchanged share may have changed
            self._shares.update(shares)
            self._speeds.meet(self._shares.values(), self.now_s)
            shares = self._shares
        for vcpu, share in shares.items():
            vcpu.accrue(self.now_s)
            vcpu.take(share, self._speeds.rates(share.cores))
            affected[vcpu] = None
        for vcpu in affected:
            self._forecast(vcpu)

    def _let_sleep_and_wake(self, vcpus: Sequence[SimVcpu]) -> None:
        """Sleepers first, so that those that wake find the freed pCPUs."""
        sleeping = [v for v in vcpus if v.counters.runnable and not v.wants]
        waking = [v for v in vcpus if v.wants and not v.counters.runnable]
        for vcpu in sleeping:
            vcpu.accrue(self.now_s)
            vcpu.guest.runnable -= 1
            self.scheduler.sleep(vcpu)
            vcpu.counters.runnable, vcpu.counters.rates = False, ()
            self._shares.pop(vcpu, None)
        for vcpu in waking:
            vcpu.accrue(self.now_s)
            vcpu.guest.runnable += 1
            self.scheduler.wake(vcpu)
            vcpu.counters.runnable = True
        # The kernel divides the weight of a guest among its runnable vCPUs.
        for guest in dict.fromkeys(v.guest for v in (*sleeping, *waking)):
            for vcpu in guest.vcpus:
                if vcpu.counters.runnable:
                    self.scheduler.changed(vcpu)

    def _forecast(self, vcpu: SimVcpu) -> None:
        work = vcpu.work
        until_s = work.waits_until_s
        target_ref_s = min(work.target_ref_s, work.behaviour.ends_ref_s)
        if until_s is None and target_ref_s == math.inf:
            return
        work.version += 1
        if until_s is not None:
            if until_s < math.inf:
                heapq.heappush(self._events, (until_s, REACHED, vcpu.order, work.version, vcpu))
            return
        speed = vcpu.speed if vcpu.counters.runnable else 0.0
        left_ref_s = target_ref_s - work.progress_ref_s
        if speed > 0.0:
            at_s = self.now_s + max(0.0, left_ref_s) / speed
            heapq.heappush(self._events, (at_s, REACHED, vcpu.order, work.version, vcpu))
