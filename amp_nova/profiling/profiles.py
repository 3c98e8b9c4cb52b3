# SPDX-License-Identifier: Apache-2.0
"""What the performance counters say about every vCPU, carried from one observation to the next."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec import Struct

from amp_nova.model.allocation import Positions
from amp_nova.model.observation import Observation, VcpuKey, VcpuReading
from amp_nova.model.topology import CoreType
from amp_nova.profiling import counter_windows, speedup
from amp_nova.profiling.counter_windows import CounterProfile
from amp_nova.profiling.speedup import MissSample, Platform, SpeedupEstimate

_INTERVAL_RATIO = 0.9
"""A window is no longer than this part of the time between two decisions of a policy."""


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How vCPUs are profiled.

    ``interval_s``: how long a policy leaves vCPUs where they are; a longer window would never be
    full.
    """

    interval_s: float = counter_windows.INTERVAL_S

    @property
    def window_ns(self) -> float:
        """Length of a window."""
        return min(counter_windows.WINDOW_S, _INTERVAL_RATIO * self.interval_s) * 1e9


class VcpuProfile(Struct, frozen=True):
    """What the performance counters say about one vCPU; ``None``: unknown."""

    ipc: float | None = None
    """Instructions per cycle while it ran, smoothed."""
    score: float | None = None
    """Fast-core efficiency: IPC x utilization (kwon2011)."""
    speedup: SpeedupEstimate | None = None
    """The most certain estimate of its speed on the fastest core type over the slowest."""
    sampled: SpeedupEstimate | None = None
    """The estimate from its rates on both core types, if it ran on both."""
    speeds: tuple[float | None, ...] = ()
    """Measured speed on each core type over the slowest, slowest first, where it ran on both."""
    coefficients: Mapping[str, float] = MappingProxyType({})
    """Its own coefficients, by name of the core type."""
    trial: str | None = None
    """The core type that own coefficients are relative to, until it was measured there, too."""
    per_ref_ns: float | None = None
    """Instructions per nanosecond of CPU time over the core type's coefficient: ranks vCPUs where
    cycles are not counted."""


UNKNOWN = VcpuProfile()


class ProfileEntry(Struct, frozen=True):
    """One vCPU: its current window, and what its windows so far have shown.

    ``position``: the core type it is kept on, ``None`` if several; ``first``: the reading with
    which the window began, at ``since_ns``; ``measured``: whether the window is full.
    """

    incarnation: str
    position: int | None
    since_ns: int
    first: VcpuReading
    counters: CounterProfile
    measured: bool = False
    profile: VcpuProfile = UNKNOWN

    def begin(self, position: int | None, reading: VcpuReading, now_ns: int) -> "ProfileEntry":
        """A new window."""
        counters, profile = self.counters, self.profile
        return ProfileEntry(self.incarnation, position, now_ns, reading, counters, False, profile)

    def lasts(self, position: int | None, now_ns: int) -> bool:
        """Whether the window continues: not over, and on the same core type."""
        passed_ns = now_ns - self.since_ns
        over = self.measured and passed_ns >= counter_windows.INTERVAL_S * 1e9
        return self.position == position and passed_ns >= 0 and not over


@dataclass(frozen=True, slots=True)
class Profiles:
    """All vCPUs' entries on a host with these core types.

    ``misses``: what a cache miss cost, by vCPU that ran on the slowest and on the fastest type.
    """

    settings: ProfileSettings = field(default_factory=ProfileSettings)
    core_types: tuple[CoreType, ...] = ()
    entries: Mapping[VcpuKey, ProfileEntry] = field(default_factory=dict)
    misses: Mapping[VcpuKey, MissSample] = field(default_factory=dict)

    def of(self, key: VcpuKey) -> VcpuProfile:
        """The profile of one vCPU."""
        entry = self.entries.get(key)
        return UNKNOWN if entry is None else entry.profile

    def coefficients(self, resources: Iterable[str]) -> dict[str, dict[int, Mapping[str, float]]]:
        """The vCPUs' own coefficients, by instance, index and core type."""
        own: dict[str, dict[int, Mapping[str, float]]] = {r: {} for r in resources}
        for (resource, index), entry in self.entries.items() if own else ():
            if resource in own and entry.profile.coefficients:
                own[resource][index] = entry.profile.coefficients
        return own

    def trials(self, resources: Collection[str]) -> dict[VcpuKey, str]:
        """The core types on which vCPUs of these instances are still to be measured."""
        return {
            key: entry.profile.trial
            for key, entry in (self.entries.items() if resources else ())
            if key[0] in resources and entry.profile.trial is not None
        }

    def drift(self, now_ns: int) -> dict[str, float]:
        """Measured speedup over the ratio of coefficients, by core type; only known ones."""
        platform = speedup.platform_of(self.core_types)
        counters = [e.counters for e in self.entries.values()]
        drifts = {}
        for position, core_type in enumerate(self.core_types):
            ratio = speedup.drift(platform, counters, position, now_ns / 1e9)
            if ratio is not None:
                drifts[core_type.name] = ratio
        return drifts


def advance(before: Profiles, observation: Observation, positions: Positions) -> Profiles:
    """Add the counters of an observation, close windows that are full, forget what is gone.

    All profiles are dropped if the core types have changed.
    """
    types, now_ns = observation.topology.core_types, observation.time_ns
    start = before if before.core_types == types else Profiles(before.settings, types)
    window_ns = start.settings.window_ns
    entries, full, counted = dict(start.entries), {}, 0
    for domain in observation.domains:
        resource, incarnation = domain.domain.resource, domain.domain.incarnation
        for reading in domain.vcpus:
            if reading.counts is None:
                continue
            counted += 1
            key = (resource, reading.index)
            position, entry = positions[key], entries.get(key)
            if entry is None or entry.incarnation != incarnation:
                nothing = CounterProfile((None,) * len(types))
                entries[key] = entry = ProfileEntry(incarnation, position, now_ns, reading, nothing)
            elif not entry.lasts(position, now_ns):
                entries[key] = entry = entry.begin(position, reading, now_ns)
            if not entry.measured and now_ns - entry.since_ns >= window_ns:
                full[key] = reading
    if counted < len(entries):  # keep the entry of a vCPU that could not be read this time
        alive = {d.domain.resource for d in observation.domains}
        entries = {k: e for k, e in entries.items() if k[0] in alive}
    profiles = Profiles(start.settings, types, entries, start.misses)
    return _closed(profiles, full, observation) if full else profiles


def _closed(
    profiles: Profiles, full: Mapping[VcpuKey, VcpuReading], observation: Observation
) -> Profiles:
    """Add the windows that are full, and update profiles and miss costs."""
    entries, misses = dict(profiles.entries), dict(profiles.misses)
    now_s = observation.time_ns / 1e9
    platform = speedup.platform_of(profiles.core_types, misses.values())
    names = [t.name for t in profiles.core_types]
    base = names.index(reference) if (reference := observation.topology.reference) in names else 0
    for key, reading in full.items():
        entry = entries[key]
        position, since_ns, first = entry.position, entry.since_ns, entry.first
        counters, profile = entry.counters, entry.profile
        passed_ns = observation.time_ns - since_ns
        window = counter_windows.window(first, reading, passed_ns)
        if window is not None and position is not None:
            counters = counter_windows.with_window(counters, position, window, now_s)
            profile = _concluded(profile, platform, counters, base, now_s)
            if (sample := speedup.miss_sample(platform, counters)) is not None:
                misses.pop(key, None)
                misses[key] = sample
        over = passed_ns >= counter_windows.INTERVAL_S * 1e9
        if over:  # the next window begins at once
            since_ns, first = observation.time_ns, reading
        entries[key] = ProfileEntry(
            entry.incarnation, position, since_ns, first, counters, not over, profile
        )
    while len(misses) > speedup.MISS_SAMPLES_MAX:
        del misses[next(iter(misses))]
    return Profiles(profiles.settings, profiles.core_types, entries, misses)


def _concluded(
    before: VcpuProfile, platform: Platform, counters: CounterProfile, base: int, now_s: float
) -> VcpuProfile:
    """The profile that follows from a vCPU's windows.

    ``before``: its last profile, whose coefficients stay unless they differ by more than noise;
    ``base``: the position of the reference core type, 0 if this host lacks it.
    """
    types = platform.core_types
    last, theirs, own = len(types) - 1, types[base].coefficient, {}
    fastest = speedup.speedup(platform, counters, last, 0, now_s)
    for position, core_type in enumerate(types):
        ours, estimate = core_type.coefficient, fastest
        if position == base or ours is None or theirs is None:
            continue
        if (position, base) != (last, 0):
            estimate = speedup.speedup(platform, counters, position, base, now_s)
        if estimate is not None:
            own_coefficient = speedup.own_coefficient(estimate, ours, theirs)
            in_force = before.coefficients.get(core_type.name, ours)
            own[core_type.name] = speedup.next_coefficient(
                in_force, own_coefficient, estimate.noise
            )
    now, per_ref_ns = counters.now, None
    if now is not None and counters.position is not None:
        coefficient = types[counters.position].coefficient
        per_ref_ns = None if coefficient is None else now.ips.value / coefficient / 1e9
    ipc = now.ipc if now else None
    measured = [speedup.from_sampling(platform, counters, p, 0, now_s) for p in range(len(types))]
    speeds = tuple([None if e is None else e.value for e in measured])
    trial = types[base].name if own and counters.types[base] is None else None
    return VcpuProfile(ipc, counters.score, fastest, measured[-1], speeds, own, trial, per_ref_ns)


def moved(profiles: Profiles, observation: Observation, positions: Positions) -> Profiles:
    """Begin a new window for each vCPU that is on another core type since the observation."""
    entries = dict(profiles.entries)
    for domain in observation.domains:
        for reading in domain.vcpus:
            key = (domain.domain.resource, reading.index)
            entry = entries.get(key)
            if entry is not None and entry.position != positions[key] and reading.counts:
                entries[key] = entry.begin(positions[key], reading, observation.time_ns)
    return Profiles(profiles.settings, profiles.core_types, entries, profiles.misses)
