"""A simulated host: what the control loop sees and moves, without a machine.

Time advances from event to event (a guest wants a pCPU or no more, a phase begins, work is done, a
barrier is reached); between two events all rates are constant, so that results are exact. The host
does nothing by itself that a real one would not: limits and affinities are the loop's.
"""

import heapq
import math
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from amp_nova.model import allocation
from amp_nova.model.allocation import NOTHING_DONE, Change, Changes, Failure, Step
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import DomainReading, Observation, Sample, VcpuKey
from amp_nova.model.topology import Topology
from amp_nova.sim.cores import Cores, Share
from amp_nova.sim.counters import REFERENCE_IPS, Hardware
from amp_nova.sim.guest import Counting, Meter, SimGuest, SimVcpu
from amp_nova.sim.scenarios.scenario import Guest
from amp_nova.sim.scenarios.workload import CYCLE_S

TURN, REACHED = 0, 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one guest. Speeds are means over its vCPUs, over the slowest core type.

    ``speed``: while it had work; ``alone_slowest`` and ``alone_fastest``: with cores of those types
    to itself. ``completion_s``: when its last vCPU was done.
    """

    speed: float
    alone_slowest: float
    alone_fastest: float
    completion_s: float | None
    meters: tuple[Meter, ...]
    migrations: int
    cross_llc_migrations: int


class HostScheduler(Protocol):
    """Who runs where and how much, of those that want to."""

    def wake(self, vcpu: SimVcpu) -> None:
        """A vCPU became runnable."""

    def sleep(self, vcpu: SimVcpu) -> None:
        """A vCPU is not runnable any more."""

    def changed(self, vcpu: SimVcpu) -> None:
        """A runnable vCPU's affinity or limit is another one."""

    def share_out(self) -> Mapping[Any, Share]:
        """The shares of all vCPUs whose shares may be others now."""
        ...


class SimHost:
    """A host of the simulator: Sensor, Actuator, FastPort, and a clock that is told to advance."""

    def __init__(
        self,
        topology: Topology,
        guests: Iterable[Guest] = (),
        seed: int = 0,
        reference_ips: float | None = None,
        counting: Counting | None = None,
        scheduler: HostScheduler | None = None,
    ) -> None:
        """``reference_ips``: how fast its reference core really is, whatever its topology knows.

        ``scheduler``: instead of the host's own.
        """
        self.now_s = 0.0
        self._hardware = Hardware(topology, reference_ips or REFERENCE_IPS)
        self._counting = counting or Counting(seed=seed)
        self.topology = topology
        self._seed = seed
        self._guests: dict[str, SimGuest] = {}
        self._started = 0
        position = {t.name: i for i, t in enumerate(topology.core_types)}
        self._type_of = {p.id: position[p.core_type] for p in topology.pcpus}
        self._chance = sorted(self._type_of)
        random.Random(f"{seed} pcpus").shuffle(self._chance)
        own = Cores({p.id: p.llc for p in topology.pcpus}, self._chance)
        self._cores: HostScheduler = own if scheduler is None else scheduler
        self._events: list[tuple[float, int, int, int, SimGuest | SimVcpu]] = []
        self._stale: dict[SimVcpu, None] = {}
        for guest in guests:
            self.add(guest)

    def add(self, guest: Guest) -> None:
        """Start a guest. It gets its pCPUs when time advances, so the loop can limit it before."""
        shift_s = random.Random(f"{self._seed} {guest.name}").uniform(0.0, CYCLE_S)
        made = SimGuest(guest, self.now_s, shift_s, self._hardware, self._counting)
        self._guests[guest.name] = made
        everywhere = frozenset(self._type_of)
        for booked in guest.booking.vcpus:
            self._started += 1
            vcpu = SimVcpu(
                made, booked.index, self._started, everywhere, len(self.topology.core_types)
            )
            made.vcpus.append(vcpu)
            self._stale[vcpu] = None
            if guest.start_on is not None:
                self._start_on(vcpu, guest.start_on, stays=booked.kind != "best_effort")
        self._expect_turn(made)

    def _start_on(self, vcpu: SimVcpu, core_type: str, *, stays: bool) -> None:
        """Begin on a core type; one with a booking is kept there, as an earlier agent left it."""
        there = self.topology.pcpus_of(core_type)
        vcpu.pcpus = there
        if vcpu.wants:
            self._cores.wake(vcpu)
            vcpu.runs = True
        else:
            vcpu.pcpu = min(there, key=self._chance.index)
        if not stays:
            vcpu.pcpus = vcpu.allowed

    def remove(self, name: str) -> None:
        """Stop a guest."""
        for vcpu in self._guests.pop(name).vcpus:
            vcpu.accrue(self.now_s)
            vcpu.done = True
            self._stale[vcpu] = None

    def observe(self) -> Observation:
        """What the loop sees."""
        readings = []
        for guest in self._guests.values():
            for vcpu in guest.vcpus:
                vcpu.accrue(self.now_s)
            vcpus = tuple(v.reading() for v in guest.vcpus)
            readings.append(DomainReading(guest.domain, vcpus, idle=guest.yields))
        return Observation(round(self.now_s * 1e9), self.topology, tuple(readings))

    def apply(self, changes: Changes) -> allocation.Outcome:
        """Make changes; nothing fails here, and a guest that is gone needs nothing."""
        for change in changes.vcpus:
            guest = self._guests.get(change.key[0])
            if guest is None:
                continue
            vcpu = guest.vcpus[change.key[1]]
            for step in change.steps:
                self._write(vcpu, step)
            if vcpu.runs:
                self._cores.changed(vcpu)
        for name, idle in changes.idle.items():
            if (guest := self._guests.get(name)) is not None:
                guest.yields = idle
                for vcpu in guest.vcpus:
                    if vcpu.runs:
                        self._cores.changed(vcpu)
        return NOTHING_DONE

    def sample(self, keys: Collection[VcpuKey]) -> Mapping[VcpuKey, Sample]:
        """What the fast loop sees of these vCPUs."""
        found = {}
        for key in keys:
            guest = self._guests.get(key[0])
            if guest is None or not guest.counted or key[1] >= len(guest.vcpus):
                continue
            vcpu = guest.vcpus[key[1]]
            vcpu.accrue(self.now_s)
            found[key] = vcpu.sample(self.now_s)
        return found

    def throttle(self, limits: Mapping[VcpuKey, Bandwidth]) -> Mapping[VcpuKey, Failure]:
        """Write limits; nothing fails here."""
        steps = {key: Step(bandwidth=limit) for key, limit in limits.items()}
        changes = tuple(Change(key, (step,)) for key, step in steps.items())
        return self.apply(Changes(changes)).failures

    def _write(self, vcpu: SimVcpu, step: Step) -> None:
        if step.pcpus is not None:
            vcpu.pcpus = step.pcpus
        else:
            vcpu.bandwidth = step.bandwidth
            vcpu.limit_cores = 1.0 if step.bandwidth is None else min(1.0, step.bandwidth.cores)

    def advance(self, until_s: float) -> None:
        """Let time pass."""
        self._settle()
        while self._events and self._events[0][0] <= until_s:
            self.now_s = max(self.now_s, self._events[0][0])
            while self._events and self._events[0][0] <= self.now_s:
                *_, version, what = heapq.heappop(self._events)
                if isinstance(what, SimGuest):
                    self._turn(what)
                elif version == what.version:
                    self._reached(what)
            self._settle()
        self.now_s = until_s

    def _turn(self, guest: SimGuest) -> None:
        if self._guests.get(guest.guest.name) is not guest:
            return
        for vcpu in guest.vcpus:
            if vcpu.runs:
                vcpu.accrue(self.now_s)
            self._stale[vcpu] = None
        guest.next_turn(self.now_s)
        self._expect_turn(guest)

    def _expect_turn(self, guest: SimGuest) -> None:
        if guest.upcoming is not None:
            at_s = guest.started_s + guest.upcoming.at_s
            heapq.heappush(self._events, (at_s, TURN, guest.vcpus[0].order, 0, guest))

    def _reached(self, vcpu: SimVcpu) -> None:
        vcpu.accrue(self.now_s)
        for stirred in vcpu.guest.reached(vcpu, self.now_s):
            stirred.accrue(self.now_s)
            self._stale[stirred] = None

    def _settle(self) -> None:
        """Let vCPUs sleep and wake, divide the pCPUs anew, and foresee what they reach when."""
        stirred = sorted(self._stale, key=lambda v: v.order)
        self._stale.clear()
        # First those that leave, so that those that come find the room.
        for vcpu in stirred:
            if vcpu.runs and not vcpu.wants:
                vcpu.accrue(self.now_s)
                self._cores.sleep(vcpu)
                vcpu.runs, vcpu.rates = False, ()
        for vcpu in stirred:
            if vcpu.wants and not vcpu.runs:
                vcpu.accrue(self.now_s)
                self._cores.wake(vcpu)
                vcpu.runs = True
        affected = dict.fromkeys(stirred)
        for runner, share in self._cores.share_out().items():
            assert isinstance(runner, SimVcpu)
            runner.accrue(self.now_s)
            runner.take(share, self._type_of)
            affected[runner] = None
        for vcpu in affected:
            self._foresee(vcpu)

    def _foresee(self, vcpu: SimVcpu) -> None:
        if vcpu.target_ref_s == math.inf:
            return
        vcpu.version += 1
        speed = vcpu.speed if vcpu.runs else 0.0
        left_ref_s = vcpu.target_ref_s - vcpu.progress_ref_s
        if speed > 0.0:
            at_s = self.now_s + max(0.0, left_ref_s) / speed
            heapq.heappush(self._events, (at_s, REACHED, vcpu.order, vcpu.version, vcpu))

    def meters(self, name: str) -> tuple[Meter, ...]:
        """What the vCPUs of a guest did so far."""
        guest = self._guests[name]
        for vcpu in guest.vcpus:
            vcpu.accrue(self.now_s)
        return tuple(v.meter() for v in guest.vcpus)

    def outcome(self, name: str) -> Outcome:
        """What became of a guest up to now."""
        guest = self._guests[name]
        meters = self.meters(name)
        guest.accrue(self.now_s)
        ended_s = self.now_s if guest.completed_s is None else guest.completed_s
        took_s = (ended_s - guest.started_s) * len(meters)
        return Outcome(
            speed=sum(m.progress_ref_s for m in meters) / took_s if took_s else 0.0,
            alone_slowest=guest.alone_slowest.speed,
            alone_fastest=guest.alone_fastest.speed,
            completion_s=guest.completed_s,
            meters=meters,
            migrations=sum(v.migrations for v in guest.vcpus),
            cross_llc_migrations=sum(v.cross_llc_migrations for v in guest.vcpus),
        )
