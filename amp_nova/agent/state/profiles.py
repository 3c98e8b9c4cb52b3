"""What is known of every vCPU's behaviour, from one cycle to the next."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from amp_nova.control.own_coefficients import NONE, Choice
from amp_nova.model.observation import Domain, Observation, VcpuKey, VcpuReading
from amp_nova.model.topology import CoreType, Topology
from amp_nova.profiling import counter_windows, speedup
from amp_nova.profiling.counter_windows import CounterProfile
from amp_nova.profiling.speedup import MissCost, MissSample, Platform
from amp_nova.profiling.vcpu_profile import VcpuProfile

UNKNOWN = VcpuProfile()
Recall = Callable[[Sequence[CoreType]], Mapping[VcpuKey, MissSample]]
_TURN_RATIO = 0.9
"""A window is no longer than this part of the time between two decisions of a policy."""


def no_lessons(_types: Sequence[CoreType]) -> Mapping[VcpuKey, MissSample]:
    """A ``Recall`` of nothing."""
    return {}


@dataclass(slots=True)
class _Watched:
    """One vCPU: its present sampling window, and what the windows so far say."""

    incarnation: str
    position: int | None
    since_ns: int
    first: VcpuReading
    behaviour: CounterProfile
    measured: bool = False
    insight: VcpuProfile = UNKNOWN
    in_force: dict[str, float] = field(default_factory=dict)


class Estimates:
    """Measures vCPUs window by window and keeps their own coefficients, with hysteresis."""

    def __init__(
        self,
        choice: Choice | None = None,
        miss: MissCost | None = None,
        recall: Recall = no_lessons,
        turn_s: float = counter_windows.INTERVAL_S,
    ) -> None:
        """``miss``: what the operator knows of the slowest core type.

        ``recall``: what was learnt of core types before; ``turn_s``: how long a policy leaves
        vCPUs where they are, so that no longer window would ever be full.
        """
        self._window_ns = min(counter_windows.WINDOW_S, _TURN_RATIO * turn_s) * 1e9
        self._recall = recall
        self._choice = choice or Choice()
        self._miss = miss or MissCost(speedup.MISS_CYCLES, speedup.MISS_SE_RATIO)
        self._watched: dict[VcpuKey, _Watched] = {}
        self._lessons: dict[VcpuKey, MissSample] = {}
        self._learnt = False
        """Whether there are lessons that the platform has not been taught yet."""
        self._untaught = self.platform = Platform((), ())

    def enter(self, seen: Observation) -> None:
        """Take note of the counters, close windows that are full, and forget what is gone."""
        types = seen.topology.core_types
        if types != self.platform.core_types:
            self._watched, self._lessons = {}, dict(self._recall(types))
            self._learnt = bool(self._lessons)
            self._untaught = self.platform = speedup.platform_of(types, self._miss)
        found = {}
        positions = _Positions(seen.topology)
        for reading in seen.domains:
            for vcpu in reading.vcpus:
                if vcpu.counts is not None:
                    key = (reading.domain.resource, vcpu.index)
                    position = positions.of(vcpu.pcpus)
                    found[key] = self._look(key, reading.domain, vcpu, position, seen)
        alive = {d.domain.resource for d in seen.domains}
        for key, kept in self._watched.items():  # one that could not be read just now is kept
            if key not in found and key[0] in alive:
                found[key] = kept
        self._watched = found
        if self._learnt:
            self.platform = speedup.with_miss_samples(self._untaught, self._lessons.values())
            self._learnt = False

    @property
    def lessons(self) -> Mapping[VcpuKey, MissSample]:
        """What vCPUs taught about the cost of a cache miss."""
        return self._lessons

    def moved(self, seen: Observation, key: VcpuKey, vcpu: VcpuReading) -> None:
        """Take note of where a vCPU is kept from this moment on: a new window, if elsewhere."""
        watched = self._watched.get(key)
        position = _Positions(seen.topology).of(vcpu.pcpus)
        if watched is not None and watched.position != position:
            _begin(watched, position, vcpu, seen.time_ns)

    def insight(self, key: VcpuKey) -> VcpuProfile:
        """What is known of one vCPU."""
        watched = self._watched.get(key)
        return UNKNOWN if watched is None else watched.insight

    def drift(self, now_ns: int) -> dict[str, float]:
        """Live speed-ups over what coefficients say, by core type (``estimate.drift``)."""
        known = [w.behaviour for w in self._watched.values()]
        found = {}
        for position, core_type in enumerate(self.platform.core_types):
            ratio = speedup.drift(self._untaught, known, position, now_ns / 1e9)
            if ratio is not None:
                found[core_type.name] = ratio
        return found

    def own(self, domain: Domain) -> dict[int, Mapping[str, float]]:
        """Own coefficients of a domain's vCPUs, if it shall go by them: by index and core type."""
        if not self._adaptive(domain):
            return {}
        indices = range(domain.vcpus)
        found = ((i, self._watched.get((domain.resource, i))) for i in indices)
        return {i: w.insight.coefficients for i, w in found if w is not None and w.in_force}

    def _adaptive(self, domain: Domain) -> bool:
        for pattern, adaptive in self._choice.exceptions:
            if fnmatchcase(domain.name, pattern) or domain.resource == pattern:
                return adaptive
        return self._choice.adaptive

    def _look(
        self,
        key: VcpuKey,
        domain: Domain,
        vcpu: VcpuReading,
        position: int | None,
        seen: Observation,
    ) -> _Watched:
        had = self._watched.get(key)
        if had is None or had.incarnation != domain.incarnation:
            nothing = CounterProfile((None,) * len(seen.topology.core_types))
            return _Watched(domain.incarnation, position, seen.time_ns, vcpu, nothing)
        passed_ns = seen.time_ns - had.since_ns
        if had.position != position or passed_ns < 0:
            _begin(had, position, vcpu, seen.time_ns)
            return had
        if not had.measured and passed_ns >= self._window_ns:
            had.measured = True
            self._close(key, had, vcpu, seen)
        if passed_ns >= counter_windows.INTERVAL_S * 1e9:
            _begin(had, position, vcpu, seen.time_ns)
        return had

    def _close(self, key: VcpuKey, had: _Watched, vcpu: VcpuReading, seen: Observation) -> None:
        """Enter a window that is full, and draw the conclusions."""
        done = counter_windows.window(had.first, vcpu, seen.time_ns - had.since_ns)
        if done is None or had.position is None:
            return
        now_s = seen.time_ns / 1e9
        had.behaviour = counter_windows.with_window(had.behaviour, had.position, done, now_s)
        self._learn_memory(key, had.behaviour)
        self._conclude(had, seen.topology, now_s)

    def _learn_memory(self, key: VcpuKey, known: CounterProfile) -> None:
        last = len(known.types) - 1
        learnt = speedup.miss_sample(self.platform, known, last, 0)
        if learnt is None:
            return
        self._lessons.pop(key, None)
        self._lessons[key] = learnt
        if len(self._lessons) > speedup.MISS_SAMPLES_MAX:
            del self._lessons[next(iter(self._lessons))]
        self._learnt = True

    def _conclude(self, had: _Watched, topology: Topology, now_s: float) -> None:
        types, known = topology.core_types, had.behaviour
        names = [t.name for t in types]
        base = names.index(topology.reference) if topology.reference in names else 0
        wanted = {}
        for position, core_type in enumerate(types):
            found = speedup.own_coefficient(self.platform, known, position, base, now_s)
            hardware = core_type.coefficient
            if found is not None and hardware is not None:
                in_force = had.in_force.get(core_type.name, hardware)
                wanted[core_type.name] = speedup.next_coefficient(
                    in_force, found[0], found[1].noise
                )
        if wanted != had.in_force:
            had.in_force = wanted
        had.insight = VcpuProfile(
            ipc=known.now.ipc if known.now else None,
            score=known.score,
            speedup=speedup.speedup(self.platform, known, len(types) - 1, 0, now_s),
            sampled=speedup.from_sampling(self.platform, known, len(types) - 1, 0, now_s),
            coefficients=had.in_force or NONE,
            per_ref_ns=_per_ref_ns(known, topology),
        )


def _per_ref_ns(known: CounterProfile, topology: Topology) -> float | None:
    """See ``VcpuProfile``; ``None`` if nothing is counted or the coefficient is unknown."""
    if known.now is None or known.position is None:
        return None
    coefficient = topology.core_types[known.position].coefficient
    return None if coefficient is None else known.now.ips.value / coefficient / 1e9


class _Positions:
    """Which core type vCPUs are kept on, looked up once for each set of pCPUs."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._known: dict[frozenset[int], int | None] = {}

    def of(self, pcpus: frozenset[int]) -> int | None:
        """Place of the core type in the topology; ``None`` when these are of several."""
        if pcpus not in self._known:
            core_type = self._topology.only_type(pcpus)
            types = self._topology.core_types
            self._known[pcpus] = None if core_type is None else types.index(core_type)
        return self._known[pcpus]


def _begin(had: _Watched, position: int | None, vcpu: VcpuReading, now_ns: int) -> None:
    had.position, had.since_ns, had.first, had.measured = position, now_ns, vcpu, False
