"""The counter profiles of all vCPUs, carried from one observation to the next."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from amp_nova.model.observation import Domain, DomainReading, Observation, VcpuKey, VcpuReading
from amp_nova.model.topology import CoreType, Topology
from amp_nova.profiling import counter_windows, speedup
from amp_nova.profiling.counter_windows import CounterProfile
from amp_nova.profiling.speedup import MissCost, MissSample, Platform
from amp_nova.profiling.vcpu_profile import VcpuProfile

UNKNOWN = VcpuProfile()
_INTERVAL_RATIO = 0.9
"""A window is no longer than this part of the time between two decisions of a policy."""
NO_PLATFORM = Platform((), ())
DEFAULT_MISS = MissCost(speedup.MISS_CYCLES, speedup.MISS_SE_RATIO)


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How vCPUs are profiled.

    ``miss``: the cost of a cache miss on the slowest core type, as configured; ``interval_s``: how
    long a policy leaves vCPUs where they are; a longer window would never be full.
    """

    miss: MissCost = DEFAULT_MISS
    interval_s: float = counter_windows.INTERVAL_S

    @property
    def window_ns(self) -> float:
        """Length of a window."""
        return min(counter_windows.WINDOW_S, _INTERVAL_RATIO * self.interval_s) * 1e9


class Entry(NamedTuple):
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

    def begin(self, position: int | None, reading: VcpuReading, now_ns: int) -> "Entry":
        """A new window."""
        counters, profile = self.counters, self.profile
        return Entry(self.incarnation, position, now_ns, reading, counters, False, profile)

    def lasts(self, domain: Domain, position: int | None, now_ns: int) -> bool:
        """Whether the window continues: not over, of the same process, on the same core type."""
        passed_ns = now_ns - self.since_ns
        return (
            self.position == position
            and passed_ns >= 0
            and not (self.measured and passed_ns >= counter_windows.INTERVAL_S * 1e9)
            and self.incarnation == domain.incarnation
        )


@dataclass(frozen=True, slots=True)
class Profiles:
    """All vCPUs' entries, and what their windows have shown about the platform.

    ``prior``: the platform before any measurement; ``history``: what vCPUs have measured.
    """

    platform: Platform = NO_PLATFORM
    prior: Platform = NO_PLATFORM
    entries: Mapping[VcpuKey, Entry] = field(default_factory=dict)
    history: Mapping[VcpuKey, MissSample] = field(default_factory=dict)

    def of(self, key: VcpuKey) -> VcpuProfile:
        """What is known of one vCPU."""
        entry = self.entries.get(key)
        return UNKNOWN if entry is None else entry.profile

    def coefficients(self, resources: Iterable[str]) -> dict[str, dict[int, Mapping[str, float]]]:
        """The vCPUs' own coefficients, by instance, index and core type."""
        found: dict[str, dict[int, Mapping[str, float]]] = {r: {} for r in resources}
        for (resource, index), entry in self.entries.items() if found else ():
            if resource in found and entry.profile.coefficients:
                found[resource][index] = entry.profile.coefficients
        return found

    def drift(self, now_ns: int) -> dict[str, float]:
        """Measured speedup over the ratio of coefficients, by core type; only known ones."""
        known = [e.counters for e in self.entries.values()]
        found = {}
        for position, core_type in enumerate(self.platform.core_types):
            ratio = speedup.drift(self.prior, known, position, now_ns / 1e9)
            if ratio is not None:
                found[core_type.name] = ratio
        return found


def advance(before: Profiles, seen: Observation, settings: ProfileSettings) -> Profiles:
    """Add the counters of an observation, close windows that are full, forget what is gone."""
    start = _for_platform(before, seen.topology.core_types, settings)
    positions: dict[frozenset[int], int | None] = {}
    known, now_ns, window_ns = start.entries, seen.time_ns, settings.window_ns
    changed: dict[VcpuKey, Entry] = {}
    full: dict[VcpuKey, VcpuReading] = {}
    for domain in seen.domains:
        resource = domain.domain.resource
        for reading in domain.vcpus:
            if reading.counts is None:
                continue
            if reading.pcpus not in positions:
                positions[reading.pcpus] = seen.topology.position(reading.pcpus)
            key, position = (resource, reading.index), positions[reading.pcpus]
            entry = known.get(key)
            if entry is None or not entry.lasts(domain.domain, position, now_ns):
                changed[key] = entry = _begun(entry, domain, reading, position, seen)
            if not entry.measured and now_ns - entry.since_ns >= window_ns:
                full[key] = reading
    alive = {d.domain.resource for d in seen.domains}
    # Keep the entry of a vCPU that could not be read this time.
    entries = {k: e for k, e in {**known, **changed}.items() if k[0] in alive}
    profiles = replace(start, entries=entries)
    return _closed(profiles, full, seen) if full else profiles


def _for_platform(
    before: Profiles, types: tuple[CoreType, ...], settings: ProfileSettings
) -> Profiles:
    """The profiles so far, or no profiles if the core types have changed."""
    if types == before.platform.core_types:
        return before
    prior = speedup.platform_of(types, settings.miss)
    return Profiles(prior, prior, {}, {})


def _begun(
    entry: Entry | None,
    domain: DomainReading,
    reading: VcpuReading,
    position: int | None,
    seen: Observation,
) -> Entry:
    """A vCPU's entry with a new window; a new process starts without a profile."""
    incarnation = domain.domain.incarnation
    if entry is None or entry.incarnation != incarnation:
        nothing = CounterProfile((None,) * len(seen.topology.core_types))
        return Entry(incarnation, position, seen.time_ns, reading, nothing)
    return entry.begin(position, reading, seen.time_ns)


def _closed(profiles: Profiles, full: Mapping[VcpuKey, VcpuReading], seen: Observation) -> Profiles:
    """Add the windows that are full, and update profiles and miss costs."""
    entries, history, now_s = dict(profiles.entries), dict(profiles.history), seen.time_ns / 1e9
    for key, reading in full.items():
        entry = entries[key]._replace(measured=True)
        passed_ns = seen.time_ns - entry.since_ns
        done = counter_windows.window(entry.first, reading, passed_ns)
        if done is not None and entry.position is not None:
            known = counter_windows.with_window(entry.counters, entry.position, done, now_s)
            _add_sample(history, key, profiles.platform, known)
            entry = _concluded(entry, known, profiles.platform, seen.topology, now_s)
        if passed_ns >= counter_windows.INTERVAL_S * 1e9:
            entry = entry.begin(entry.position, reading, seen.time_ns)
        entries[key] = entry
    platform = profiles.platform
    if history != profiles.history:
        platform = speedup.with_miss_samples(profiles.prior, history.values())
    return replace(profiles, platform=platform, entries=entries, history=history)


def _add_sample(
    history: dict[VcpuKey, MissSample], key: VcpuKey, platform: Platform, known: CounterProfile
) -> None:
    sample = speedup.miss_sample(platform, known, len(known.types) - 1, 0)
    if sample is not None:
        history.pop(key, None)
        history[key] = sample
        if len(history) > speedup.MISS_SAMPLES_MAX:
            del history[next(iter(history))]


def _concluded(
    entry: Entry, known: CounterProfile, platform: Platform, topology: Topology, now_s: float
) -> Entry:
    """The entry with the profile that follows from its windows."""
    types, before = topology.core_types, entry.profile.coefficients
    names = [t.name for t in types]
    base = names.index(topology.reference) if topology.reference in names else 0
    per_ref_ns, own = _per_ref_ns(known, topology), {}
    for position, core_type in enumerate(types):
        found = speedup.own_coefficient(platform, known, position, base, now_s)
        if found is not None and core_type.coefficient is not None:
            in_force = before.get(core_type.name, core_type.coefficient)
            own[core_type.name] = speedup.next_coefficient(in_force, found[0], found[1].noise)
    profile = VcpuProfile(
        ipc=known.now.ipc if known.now else None,
        score=known.score,
        speedup=speedup.speedup(platform, known, len(types) - 1, 0, now_s),
        sampled=speedup.from_sampling(platform, known, len(types) - 1, 0, now_s),
        coefficients=own,
        per_ref_ns=per_ref_ns,
    )
    return entry._replace(counters=known, profile=profile)


def _per_ref_ns(known: CounterProfile, topology: Topology) -> float | None:
    """As in ``VcpuProfile``; ``None`` if nothing is counted or the coefficient is unknown."""
    if known.now is None or known.position is None:
        return None
    coefficient = topology.core_types[known.position].coefficient
    return None if coefficient is None else known.now.ips.value / coefficient / 1e9


def moved(
    profiles: Profiles, seen: Observation, kept: Mapping[VcpuKey, frozenset[int]]
) -> Profiles:
    """Begin a new window for each vCPU that ``kept`` puts on another core type."""
    entries, topology = dict(profiles.entries), seen.topology
    for domain in seen.domains:
        for reading in domain.vcpus:
            key = (domain.domain.resource, reading.index)
            entry = entries.get(key)
            if entry is not None and key in kept:
                position = topology.position(kept[key])
                if entry.position != position:
                    entries[key] = entry.begin(position, reading, seen.time_ns)
    return replace(profiles, entries=entries)
