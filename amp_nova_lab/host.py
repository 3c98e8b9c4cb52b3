# SPDX-License-Identifier: Apache-2.0
"""A simulated host: what the control loop observes and changes, without a machine.

The host does nothing on its own that a real one would not: limits and affinities come from the
control loop.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from amp_nova.hardware.effective_speed import alone_shares
from amp_nova.model import allocation
from amp_nova.model.allocation import NOTHING_DONE, Change, Changes, Failure
from amp_nova.model.bandwidth import Bandwidth, Step
from amp_nova.model.observation import DomainReading, Observation, VcpuKey, VcpuSample
from amp_nova.model.topology import PCpu, Topology
from amp_nova_lab.cores import Cores, PreferFast
from amp_nova_lab.counters import Counting
from amp_nova_lab.guest import Meter, RunningShare, SimGuest, SimVcpu
from amp_nova_lab.programs import latencies_s
from amp_nova_lab.scenarios.hosts import Machine
from amp_nova_lab.scenarios.scenario import Guest
from amp_nova_lab.timeline import HostScheduler, PCpuSpeeds, Timeline

NOTHING_MORE = Machine()


@dataclass(frozen=True, slots=True)
class GuestOutcome:
    """What one guest achieved. Speeds are means over its vCPUs, relative to the slowest core type.

    ``speed``: while it had work; ``alone``: without other guests; ``alone_slowest``: with a core of
    the slowest type for each vCPU. ``completion_s``: when its last vCPU finished.
    ``latencies_s``: of its requests that ended, in ascending order.
    """

    speed: float
    alone: float
    alone_slowest: float
    completion_s: float | None
    meters: tuple[Meter, ...]
    migrations: int
    cross_llc_migrations: int
    latencies_s: Sequence[float] = ()


class SimHost:
    """A Sensor, Actuator and FastPort with a clock that moves only in ``advance``."""

    def __init__(
        self,
        topology: Topology,
        guests: Iterable[Guest] = (),
        seed: int = 0,
        counting: Counting | None = None,
        scheduler: HostScheduler | None = None,
        machine: Machine = NOTHING_MORE,
    ) -> None:
        """``scheduler`` replaces the host's own; ``machine``: its clocks and kernel."""
        self.topology = topology
        self._counting = counting or Counting(seed=seed)
        self._seed = seed
        self._guests: dict[str, SimGuest] = {}
        self._started = 0
        self._pcpus = frozenset(p.id for p in topology.pcpus)
        self._preference = sorted(self._pcpus)
        random.Random(f"{seed} pcpus").shuffle(self._preference)
        speeds = PCpuSpeeds(topology, machine.clocks)
        self._timeline = Timeline(scheduler or self._kernel(machine), speeds)
        for guest in guests:
            self.add(guest)

    def _kernel(self, machine: Machine) -> Cores:
        """The host's own scheduler: ``blind`` or ``prefer_fast``."""
        for_vcpus = 1.0 - machine.other_ratio
        llc = {p.id: p.llc for p in self.topology.pcpus}
        if machine.kernel == "blind":
            return Cores(llc, self._preference, for_vcpus)
        coefficient = {t.name: t.coefficient or 0.0 for t in self.topology.core_types}
        speeds = {p.id: coefficient[p.core_type] for p in self.topology.pcpus}
        siblings = {pcpu: self.topology.siblings_of(pcpu) for pcpu in llc}
        return PreferFast(llc, self._preference, speeds, siblings, for_vcpus)

    @property
    def now_s(self) -> float:
        """Simulated time since the host was made."""
        return self._timeline.now_s

    def advance(self, until_s: float) -> None:
        """Let time pass until ``until_s``."""
        self._timeline.advance(until_s)

    def add(self, guest: Guest) -> None:
        """Start a guest. It gets pCPUs once time advances, so the loop can limit it before."""
        added = SimGuest(guest, self.now_s, self._seed, self.topology, self._counting)
        self._guests[guest.name] = added
        added.start(self._started + 1, self._pcpus)
        self._started += len(added.vcpus)
        if guest.start_on is not None:
            for vcpu, booked in zip(added.vcpus, guest.booking.vcpus, strict=True):
                self._start_on(vcpu, guest.start_on, stays=booked.kind != "best_effort")
        self._timeline.start(added)

    def _start_on(self, vcpu: SimVcpu, core_type: str, *, stays: bool) -> None:
        """Start on a core type; ``stays``: pinned there, as an earlier agent would leave it."""
        there = self.topology.pcpus_of(core_type)
        vcpu.pcpus = there
        if vcpu.wants:
            self._timeline.scheduler.wake(vcpu)
            vcpu.counters.runnable = True
        else:
            vcpu.pcpu = min(there, key=self._preference.index)
        if not stays:
            vcpu.pcpus = self._pcpus

    def remove(self, name: str) -> None:
        """Stop a guest."""
        self._timeline.stop(self._guests.pop(name))

    def observe(self) -> Observation:
        """Every guest's counters and limits."""
        readings, now_s = [], self.now_s
        for guest in self._guests.values():
            for vcpu in guest.vcpus:
                vcpu.accrue(now_s)
            vcpus = tuple([v.reading(self._pcpus) for v in guest.vcpus])
            readings.append(DomainReading(guest.domain, vcpus, None, guest.cpu_weight))
        idle_ns = self._timeline.idle_ns()
        return Observation(round(now_s * 1e9), self.topology, tuple(readings), idle_ns=idle_ns)

    def apply(self, changes: Changes) -> allocation.Outcome:
        """Apply changes; nothing fails here, and guests that are gone are ignored."""
        for change in changes.vcpus:
            if (guest := self._guests.get(change.key[0])) is None:
                continue
            vcpu = guest.vcpus[change.key[1]]
            for step in change.steps:
                if step.pcpus is not None:
                    vcpu.pcpus = step.pcpus
                else:
                    bandwidth = vcpu.bandwidth = step.bandwidth
                    vcpu.limit_cores = 1.0 if bandwidth is None else min(1.0, bandwidth.cores)
            self._notify(vcpu)
        for name, weight in changes.cpu_weights.items():
            if (guest := self._guests.get(name)) is not None:
                guest.cpu_weight = weight
                for vcpu in guest.vcpus:
                    self._notify(vcpu)
        return NOTHING_DONE

    def sample(self, keys: Collection[VcpuKey]) -> Mapping[VcpuKey, VcpuSample]:
        """Counters of these vCPUs now; those that are gone or not counted are left out."""
        samples = {}
        for key in keys:
            guest = self._guests.get(key[0])
            if guest is None or not self._counting.works or key[1] >= len(guest.vcpus):
                continue
            vcpu = guest.vcpus[key[1]]
            vcpu.accrue(self.now_s)
            samples[key] = vcpu.sample(self.now_s)
        return samples

    def throttle(self, limits: Mapping[VcpuKey, Bandwidth | None]) -> Mapping[VcpuKey, Failure]:
        """Write limits; nothing fails here."""
        changes = tuple(Change(key, (Step(bandwidth=b),)) for key, b in limits.items())
        return self.apply(Changes(changes)).failures

    def _notify(self, vcpu: SimVcpu) -> None:
        if vcpu.counters.runnable:
            self._timeline.scheduler.changed(vcpu)

    def meters(self, name: str) -> tuple[Meter, ...]:
        """What the vCPUs of a guest did so far."""
        guest = self._guests[name]
        for vcpu in guest.vcpus:
            vcpu.accrue(self.now_s)
        return tuple(v.meter() for v in guest.vcpus)

    def outcome(self, name: str) -> GuestOutcome:
        """What a guest achieved so far."""
        guest = self._guests[name]
        meters = self.meters(name)
        alone_slowest, alone = alone_speeds(guest, self.topology, self._seed, self.now_s)
        return GuestOutcome(
            speed=guest.speed(self.now_s),
            alone=alone,
            alone_slowest=alone_slowest,
            completion_s=guest.completed_s,
            meters=meters,
            migrations=sum(v.moves.total for v in guest.vcpus),
            cross_llc_migrations=sum(v.moves.cross_llc for v in guest.vcpus),
            latencies_s=latencies_s(guest.vcpus[0]),
        )


def alone_speeds(
    guest: SimGuest, topology: Topology, seed: int, now_s: float
) -> tuple[float, float]:
    """Mean speed per vCPU on cores of the slowest type only, and alone on the host.

    Both are simulated, without SMT and at calibrated clocks. In the first case the guest has a core
    of the slowest type per vCPU, in the second those of the host that ``amp:core_type`` allows.
    """
    types, booking = topology.core_types, guest.guest.booking
    slowest = [len(booking.vcpus), *(0 for _ in types[1:])]
    host = [len(topology.pcpus_of(t.name)) * (booking.core_type in (None, t.name)) for t in types]
    lasts_s = now_s - guest.started_s
    alone_slowest = _simulated(guest, topology, slowest, seed, lasts_s)
    running = range(1, len(booking.vcpus) + 1)
    if all(alone_shares(slowest, n) == alone_shares(host, n) for n in running):
        return alone_slowest, alone_slowest  # it would be the same simulation
    return alone_slowest, _simulated(guest, topology, host, seed, lasts_s)


def _simulated(
    guest: SimGuest, topology: Topology, pcpus: Sequence[int], seed: int, lasts_s: float
) -> float:
    types = topology.core_types
    one_each = tuple(PCpu(at, t.name, (at,), llc=0) for at, t in enumerate(types))
    small = Topology(types, one_each, topology.reference, topology.source)
    timeline = Timeline(TakingTurns(pcpus), PCpuSpeeds(small, {}))
    again = SimGuest(guest.guest, 0.0, seed, topology, Counting(works=False))
    again.start(1, frozenset(range(len(types))))
    timeline.start(again)
    timeline.advance(lasts_s)
    for vcpu in again.vcpus:
        vcpu.accrue(lasts_s)
    return again.speed(lasts_s)


class TakingTurns:
    """The vCPUs of one guest take the fastest pCPUs, and take turns if these are too few."""

    def __init__(self, pcpus: Sequence[int]) -> None:
        """``pcpus``: how many of each core type, slowest first."""
        self._pcpus = pcpus
        self._running: dict[SimVcpu, None] = {}

    def wake(self, vcpu: SimVcpu) -> None:
        """A vCPU became runnable."""
        self._running[vcpu] = None

    def sleep(self, vcpu: SimVcpu) -> None:
        """A vCPU is no longer runnable."""
        del self._running[vcpu]

    def changed(self, vcpu: SimVcpu) -> None:
        """Nothing to do: affinities, limits and weights have no effect here."""

    def reschedule(self) -> dict[SimVcpu, RunningShare]:
        """The same share for every vCPU; one pCPU stands for all of its core type."""
        if not self._running:
            return {}
        shares = alone_shares(self._pcpus, len(self._running))
        cores = {at: share for at, share in enumerate(shares) if share > 0.0}
        return {vcpu: RunningShare(cores, 0.0) for vcpu in self._running}
