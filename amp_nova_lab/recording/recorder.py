# SPDX-License-Identifier: Apache-2.0
"""Adds up what the vCPUs of a host did, from one observation to the next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from amp_nova.accounting.speed_loss import losses, siblings_busy
from amp_nova.flavor.extra_specs import Booking, best_effort, examine
from amp_nova.model import allocation
from amp_nova.model.observation import (
    Domain,
    Observation,
    Usage,
    VcpuKey,
    VcpuReading,
    usage,
)
from amp_nova.model.topology import Topology
from amp_nova.profiling import profiles
from amp_nova.profiling.profiles import Profiles, ProfileSettings
from amp_nova.profiling.speedup import SpeedupEstimate
from amp_nova_lab.guest import Meter
from amp_nova_lab.report import WINDOW_S, Windows

BUCKETS_MAX = 720
"""Buckets of a recording: phases are no shorter than two of them."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """One vCPU over a short time, in seconds of wall time.

    ``observed_s``: how much of it was observed; ``demand_s``: how long the vCPU wanted to run in
    the observed time; ``speedup``: its speedup as estimated at the end, if measured on both types.
    """

    length_s: float
    observed_s: float
    demand_s: float
    speedup: SpeedupEstimate | None = None


@dataclass(slots=True)
class VcpuRecording:
    """One vCPU. Times are in seconds; ``run_s`` and ``full_speed_s`` as in ``sim.vcpu.Meter``.

    ``elsewhere_s``: time it ran on an unknown core type. ``ipc``: instructions per cycle by core
    type, if counted. ``speedup``: the best estimate (``better``).
    """

    run_s: list[float]
    full_speed_s: list[float]
    wait_s: float = 0.0
    throttled_s: float = 0.0
    instructions: float = 0.0
    elsewhere_s: float = 0.0
    buckets: list[Bucket] = field(default_factory=list)
    ipc: dict[str, float] = field(default_factory=dict)
    speedup: SpeedupEstimate | None = None
    position: int | None = None
    """Position of the core type on which it was first seen."""

    @property
    def demand_s(self) -> float:
        """How long it wanted to run."""
        return sum(b.demand_s for b in self.buckets)

    def meter(self) -> Meter:
        """The totals in the simulator's form."""
        return Meter(
            tuple(self.run_s),
            self.wait_s,
            self.throttled_s,
            instructions=self.instructions,
            full_speed_s=tuple(self.full_speed_s),
        )


@dataclass(slots=True)
class RecordedInstance:
    """One instance. ``windows``: what it was owed and got, if it books capacity.

    ``errors``: why its booking cannot be read. ``late``, ``early``: whether it came after the
    beginning or went before the end.
    """

    domain: Domain
    booking: Booking
    errors: tuple[str, ...]
    vcpus: list[VcpuRecording]
    allowed: dict[int, frozenset[int]]
    windows: Windows | None
    late: bool = False
    early: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """What was recorded, by UUID. ``changed``: whether pCPUs went online or offline meanwhile."""

    topology: Topology
    lasted_s: float
    instances: Mapping[str, RecordedInstance]
    changed: bool


class Recorder:
    """Takes observations one after the other."""

    def __init__(self, settings: ProfileSettings, bucket_s: float) -> None:
        """``bucket_s``: resolution in time."""
        self._bucket_s = bucket_s
        self._profiles = Profiles(settings)
        self._first: Observation | None = None
        self._last: Observation | None = None
        self._readings: dict[VcpuKey, tuple[str, VcpuReading]] = {}
        self._idle_ns: Mapping[int, int] = {}
        self._instances: dict[str, RecordedInstance] = {}
        self._window_ns = 0
        self._changed = False

    @property
    def instances(self) -> int:
        """How many instances were seen so far."""
        return len(self._instances)

    def add(self, observation: Observation) -> None:
        """Add the interval since the last observation."""
        before, first = self._last, self._first
        if first is None or before is None:
            self._first, self._window_ns = observation, observation.time_ns
            passed_s = 0.0
        else:
            self._changed |= observation.topology.pcpus != first.topology.pcpus
            passed_s = (observation.time_ns - before.time_ns) / 1e9
        now = allocation.of_host(observation.domains)
        positions = allocation.positions(observation.topology, now)
        self._profiles = profiles.advance(self._profiles, observation, positions)
        new = {d.domain.resource: d.domain for d in observation.domains}
        new = {r: domain for r, domain in new.items() if r not in self._instances}
        for resource, domain in new.items():
            self._instances[resource] = self._begun(observation, domain)
        used = self._used(observation, passed_s)
        there = {d.domain.resource for d in observation.domains}
        for resource, instance in self._instances.items():
            instance.early = resource not in there
            for index, vcpu in enumerate(() if resource in new else instance.vcpus):
                interval = used.get((resource, index))
                if resource not in there:
                    interval = Usage(passed_s, 0.0, 0.0, 0.0)
                measured = self._profiles.of((resource, index)).sampled
                _extend(vcpu.buckets, passed_s, interval, measured, self._bucket_s)
        self._conclude(observation)
        self._last = observation

    def result(self) -> Recording | None:
        """What was recorded; ``None`` before the second observation."""
        first, last = self._first, self._last
        if first is None or last is None or last.time_ns <= first.time_ns:
            return None
        lasted_s = (last.time_ns - first.time_ns) / 1e9
        return Recording(first.topology, lasted_s, dict(self._instances), self._changed)

    def _begun(self, observation: Observation, domain: Domain) -> RecordedInstance:
        assert self._first is not None
        types = len(self._first.topology.core_types)
        late_s = (observation.time_ns - self._first.time_ns) / 1e9
        booking, errors = examine(domain.specs, domain.vcpus)
        if domain.problem is not None:
            booking, errors = None, (domain.problem,)
        booking = booking or best_effort(domain.vcpus)
        # Before it arrived it had no demand.
        absent = Bucket(late_s, late_s, 0.0)
        vcpus = [
            VcpuRecording([0.0] * types, [0.0] * types, buckets=[absent] if late_s else [])
            for _ in range(domain.vcpus)
        ]
        windows = None
        if booking.booked:
            windows = Windows(booking, self._first.topology)
        return RecordedInstance(domain, booking, errors, vcpus, {}, windows, late=late_s > 0.0)

    def _used(self, observation: Observation, passed_s: float) -> dict[VcpuKey, Usage]:
        """What every vCPU did since the last observation, entered in its totals."""
        intervals: dict[VcpuKey, tuple[VcpuReading, VcpuReading, Usage]] = {}
        for domain in observation.domains:
            instance = self._instances[domain.domain.resource]
            for reading in domain.vcpus:
                if reading.index >= len(instance.vcpus):
                    continue  # added by a resize: the scenario has those that there were at first
                key = (domain.domain.resource, reading.index)
                instance.allowed[reading.index] = reading.allowed
                life, last = self._readings.get(key, ("", reading))
                self._readings[key] = (domain.domain.incarnation, reading)
                vcpu = instance.vcpus[reading.index]
                if vcpu.position is None:
                    vcpu.position = _position(observation.topology, reading)
                if life != domain.domain.incarnation or not passed_s:
                    continue
                used = usage(last, reading, round(passed_s * 1e9))
                if used is not None:
                    intervals[key] = (last, reading, used)
        busy = siblings_busy(observation, self._idle_ns, round(passed_s * 1e9))
        self._idle_ns = observation.idle_ns
        for key, (last, reading, used) in intervals.items():
            used = structs.replace(used, siblings_busy_ratio=busy.get(key, 0.0))
            _enter(
                self._instances[key[0]].vcpus[key[1]], observation.topology, (last, reading), used
            )
        return {key: used for key, (_, _, used) in intervals.items()}

    def _conclude(self, observation: Observation) -> None:
        """Close the windows of bookings every second, and keep the best estimates."""
        names = [t.name for t in observation.topology.core_types]
        closing_s = (observation.time_ns - self._window_ns) / 1e9
        for resource, instance in self._instances.items():
            if instance.windows is not None and closing_s >= WINDOW_S * 0.999:
                instance.windows.close(tuple(v.meter() for v in instance.vcpus), closing_s)
            for index, vcpu in enumerate(instance.vcpus):
                entry = self._profiles.entries.get((resource, index))
                if entry is None:
                    continue
                vcpu.speedup = better(vcpu.speedup, entry.profile.speedup)
                vcpu.ipc.update(_ipc(names, observation.topology, entry))
        if closing_s >= WINDOW_S * 0.999:
            self._window_ns = observation.time_ns


def better(one: SpeedupEstimate | None, other: SpeedupEstimate | None) -> SpeedupEstimate | None:
    """The estimate with the least standard error; one from runs on both core types goes first."""
    estimates = [e for e in (other, one) if e is not None]
    return min(estimates, key=lambda e: (e.source != "sampling", e.se), default=None)


def _ipc(
    names: Sequence[str], topology: Topology, entry: profiles.ProfileEntry
) -> Iterator[tuple[str, float]]:
    """Instructions per cycle by core type, or without cycles what policies use instead."""
    for at, profile in enumerate(entry.counters.types):
        coefficient = topology.core_types[at].coefficient
        if profile is not None and profile.ipc is not None:
            yield names[at], profile.ipc
        elif profile is not None and coefficient:
            yield names[at], profile.ips.value / coefficient / 1e9


def _position(topology: Topology, reading: VcpuReading) -> int | None:
    """Position of the core type that a vCPU was on; ``None``: unknown."""
    position = topology.position(reading.pcpus)
    if position is None and reading.last_pcpu in reading.pcpus:
        position = topology.position({reading.last_pcpu})
    return position


def _enter(
    vcpu: VcpuRecording, topology: Topology, readings: tuple[VcpuReading, ...], used: Usage
) -> None:
    """Add an interval; if the vCPU moved in it, half of the interval counts on either core type."""
    positions = [p for r in readings if (p := _position(topology, r)) is not None]
    for at in positions:
        core_type = topology.core_types[at]
        run_s = used.run_s / len(positions)
        lost = losses(structs.replace(used, run_s=run_s), 1.0, core_type)
        vcpu.run_s[at] += run_s
        vcpu.full_speed_s[at] += run_s - lost.total_ref_s
    if not positions:
        vcpu.elsewhere_s += used.run_s
    vcpu.wait_s += used.wait_s
    vcpu.throttled_s += used.throttled_s
    vcpu.instructions += used.instructions or 0.0


def _extend(
    buckets: list[Bucket],
    passed_s: float,
    used: Usage | None,
    speedup: SpeedupEstimate | None,
    length_s: float,
) -> None:
    """Add an interval to the last bucket, or to a new one once that is full."""
    if passed_s <= 0.0:
        return
    observed_s, demand_s = (0.0, 0.0) if used is None else (passed_s, used.demand_s)
    new = Bucket(passed_s, observed_s, demand_s, speedup)
    if buckets and buckets[-1].length_s < length_s * 0.999:
        last = buckets.pop()
        new = Bucket(
            last.length_s + passed_s,
            last.observed_s + observed_s,
            last.demand_s + demand_s,
            speedup or last.speedup,
        )
    buckets.append(new)
