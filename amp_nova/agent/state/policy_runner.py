"""Asks the best-effort policy once an interval, and does not trust its answer."""

import logging
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from amp_nova.agent.state.idle_capacity import Vacancies
from amp_nova.agent.state.lending import Lending
from amp_nova.control.entitlement import Promise
from amp_nova.model.allocation import Grant
from amp_nova.model.observation import Observation, VcpuKey, VcpuReading
from amp_nova.model.topology import Topology
from amp_nova.policies import api
from amp_nova.policies.api import Decision, HostView, Policy, VcpuView
from amp_nova.policies.none import NonePolicy
from amp_nova.profiling.hints import hinted_speedup

LOG = logging.getLogger(__name__)
FAULTS_MAX = 5
"""Bad plans in a row after which the policy is dropped for ``none``."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a vCPU: as in ``VcpuView``, but ``cpu_s`` since it was first seen."""

    ipc: float | None = None
    speedup: float | None = None
    cpu_s: tuple[float, ...] = ()
    sampled: bool = False
    hint: float | str | None = None
    """``amp:efficiency`` as its flavor has it."""


NOTHING = Known()
_NOISE = 1e-9
_EARLY_RATIO = 0.95
"""An interval is over at this part of it: cycles begin a moment earlier or later, and a policy
would be asked after one cycle now and after two then."""


class BestEffort:
    """Runs one policy over the vCPUs that book nothing."""

    def __init__(
        self,
        policy: Policy,
        interval_s: float,
        seed: int = 0,
        moves_max: int | None = None,
        *,
        lends: bool = True,
    ) -> None:
        """``lends``: whether best effort yields, so that what bookings do not use can be lent."""
        self.policy = policy
        self.rejected = 0
        self._interval_ns = int(interval_s * 1e9)
        self._seed = seed
        self._interval = 0
        self._faults = 0
        self._before: dict[VcpuKey, VcpuReading] = {}
        self._cpu_s: dict[VcpuKey, tuple[float, ...]] = {}
        self._before_ns: int | None = None
        self._early_ns: int | None = None
        self._early = False
        """Whether the policy wants to be asked early, see ``Decision``."""
        self._asked: tuple[object, bool] = (None, False)
        self._vacancies = Vacancies()
        self._lending = Lending()
        self._lends = lends
        self._places: dict[VcpuKey, frozenset[int]] = {}
        """Whom the last decision put where."""
        self._moves_max = moves_max
        self._moves_left = 0.0 if moves_max is None else float(moves_max)
        """What decisions may move now: ``moves_max`` an interval, not to be saved up."""
        self._memory: object = None
        self._placed: frozenset[VcpuKey] = frozenset()
        """vCPUs that were placed: ours to let go when the policy is dropped."""

    def grants(
        self,
        seen: Observation,
        promises: Mapping[VcpuKey, Promise],
        known: Callable[[VcpuKey], Known] = lambda _: NOTHING,
    ) -> list[Grant]:
        """Grants of this cycle: none between two decisions, and none from a bad plan."""
        passed_ns = 0 if self._before_ns is None else seen.time_ns - self._before_ns
        due = self._before_ns is None or not 0 <= passed_ns < _EARLY_RATIO * self._interval_ns
        if not self._any(promises) or not (due or self._early):
            return []
        readings = {(d.domain.resource, v.index): v for d in seen.domains for v in d.vcpus}
        if self._early:
            self._vacancies.note(seen, readings)
        if not due and not self._overtaken(seen, promises):
            return []
        facts = {key: known(key) for key in readings}
        self._earn_moves(passed_ns)
        view = self._view(seen, promises, readings, facts)
        self._cpu_s = {key: fact.cpu_s for key, fact in facts.items()}
        self._before, self._before_ns = readings, seen.time_ns
        self._interval += 1
        if not view.asymmetric:  # nothing to decide, and no cost
            return []
        try:
            why = f"policy {self.policy.name}"
            decided = self.policy.decide(view)
            if not isinstance(decided, Decision):
                decided = Decision(decided)
            grants = [Grant(key, _ids(pcpus), why=why) for key, pcpus in decided.places.items()]
            places = {grant.key: grant.pcpus for grant in grants}
            api.check(places, {v.key: v.allowed for v in view.vcpus}, seen.topology)
        except Exception as exc:  # noqa: BLE001 - foreign code: whatever it raises must not stop us
            return self._fault(exc, view)
        self._faults = 0
        self._memory, self._early = decided.memory, decided.early
        self._moves_left -= _moves(seen.topology, grants, readings)
        self._places = {grant.key: grant.pcpus for grant in grants}
        self._placed |= self._places.keys()
        self._placed &= readings.keys()
        return grants

    def _any(self, promises: Mapping[VcpuKey, Promise]) -> bool:
        """Whether there is anything for the policy to decide."""
        if promises is not self._asked[0]:
            self._asked = (promises, any(map(_is_ours, promises.values())))
        return self._asked[1] and not isinstance(self.policy, NonePolicy)

    def _overtaken(self, seen: Observation, promises: Mapping[VcpuKey, Promise]) -> bool:
        """Whether to ask before the interval is over: once in an interval at most."""
        last_ns = self._early_ns
        if last_ns is not None and 0 <= seen.time_ns - last_ns < self._interval_ns:
            return False
        movable = {
            (d.domain.resource, v.index): _allowed(promise, v)
            for d in seen.domains
            for v in d.vcpus
            if _is_ours(promise := promises[d.domain.resource, v.index])
        }
        placed = {**self._places, **self._lending.places}
        back = self._lends and self._lending.back(self._vacancies)
        if not back and not self._vacancies.overtaken(seen.topology, placed, movable):
            return False
        self._early_ns = seen.time_ns
        return True

    def _earn_moves(self, passed_ns: int) -> None:
        if self._moves_max is not None:
            earned = self._moves_max * abs(passed_ns) / self._interval_ns
            self._moves_left = min(self._moves_max, self._moves_left + earned)

    def _view(
        self,
        seen: Observation,
        promises: Mapping[VcpuKey, Promise],
        readings: Mapping[VcpuKey, VcpuReading],
        facts: Mapping[VcpuKey, Known],
    ) -> HostView:
        vcpus = []
        for key, promise in promises.items():
            if _is_ours(promise):
                vcpu = self._vcpu(key, promise, readings[key], seen.time_ns)
                fact = facts[key]
                spent_s = _since(self._cpu_s.get(key, ()), fact.cpu_s)
                vcpus.append(
                    replace(
                        vcpu,
                        ipc=fact.ipc,
                        speedup=fact.speedup,
                        sampled=fact.sampled,
                        hint=hinted_speedup(fact.hint, seen.topology),
                        cpu_s=spent_s,
                    )
                )
        return HostView(
            seen.topology,
            tuple(vcpus),
            self._free(seen, promises, readings),
            self._interval,
            self._seed,
            self._memory,
            max(0, seen.time_ns - (self._before_ns or seen.time_ns)) / 1e9,
            self._interval_ns / 1e9,
            None if self._moves_max is None else int(self._moves_left + _NOISE),
            frozenset(p.pcpu for p in promises.values() if p.pcpu is not None),
        )

    def _free(
        self,
        seen: Observation,
        promises: Mapping[VcpuKey, Promise],
        readings: Mapping[VcpuKey, VcpuReading],
    ) -> dict[int, float]:
        """What bookings leave of every pCPU."""
        free = {p.id: 1.0 for p in seen.topology.pcpus}
        used: Mapping[VcpuKey, float] = {}
        if self._lends:
            wanted = {}
            for key, promise in promises.items():
                share = self._ran_and_wanted(key, readings[key], seen.time_ns)[1]
                if promise.pcpu is not None and share is not None:
                    wanted[key] = share
            elapsed_s = (seen.time_ns - (self._before_ns or seen.time_ns)) / 1e9
            used = self._lending.lend(promises, wanted, self._vacancies, abs(elapsed_s))
        for key, promise in promises.items():
            if promise.pcpu is not None:
                free[promise.pcpu] -= used.get(key, promise.cores or 0.0)
        return free

    def _ran_and_wanted(
        self, key: VcpuKey, reading: VcpuReading, now_ns: int
    ) -> tuple[float, float] | tuple[None, None]:
        """Shares of the time since the last decision that it ran, and wanted to run."""
        before, wall_ns = self._before.get(key), now_ns - (self._before_ns or 0)
        if before is None or wall_ns <= 0 or reading.run_ns < before.run_ns:
            return None, None
        ran = (reading.run_ns - before.run_ns) / wall_ns
        return ran, min(1.0, ran + max(0, reading.wait_ns - before.wait_ns) / wall_ns)

    def _vcpu(self, key: VcpuKey, promise: Promise, reading: VcpuReading, now_ns: int) -> VcpuView:
        ran, wanted = self._ran_and_wanted(key, reading, now_ns)
        last = reading.last_pcpu
        allowed, asleep = _allowed(promise, reading), self._vacancies.asleep(key)
        return VcpuView(
            key, reading.pcpus, allowed, promise.weight, ran, wanted, last, asleep=asleep
        )

    def _fault(self, exc: Exception, view: HostView) -> list[Grant]:
        """Keep what holds; after too many in a row let go of what was placed."""
        self.rejected += 1
        self._faults += 1
        LOG.warning("policy %s gave no usable plan: %s", self.policy.name, exc)
        if self._faults < FAULTS_MAX:
            return []
        LOG.error("policy %s failed %d times in a row: using none", self.policy.name, FAULTS_MAX)
        why = f"policy {self.policy.name} was dropped"
        placed, self._placed = self._placed, frozenset()
        self.policy, self._faults, self._memory = NonePolicy(), 0, None
        online = {p.id for p in view.topology.pcpus}
        return [Grant(v.key, v.allowed & online, why=why) for v in view.vcpus if v.key in placed]


def _is_ours(promise: Promise) -> bool:
    """Whether a policy may place it."""
    return promise.booking.kind == "best_effort" and not promise.hands_off


def _allowed(promise: Promise, reading: VcpuReading) -> frozenset[int]:
    """The pCPUs it may use, those of its flavor's core type where it has one."""
    bound = promise.grant is not None and not (promise.rooms and promise.core_type is None)
    return promise.grant.pcpus if promise.grant and bound else reading.allowed


def _moves(
    topology: Topology, grants: Iterable[Grant], readings: Mapping[VcpuKey, VcpuReading]
) -> int:
    """How many vCPUs go from one core type to another."""
    types = (
        (topology.only_type(readings[g.key].pcpus), topology.only_type(g.pcpus)) for g in grants
    )
    return sum(was is not None and was is not becomes for was, becomes in types)


def _since(before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, ...]:
    """What was added; all of it when nothing is known of before."""
    if len(before) != len(now):
        return now
    return tuple(max(0.0, b - a) for a, b in zip(before, now, strict=True))


def _ids(pcpus: Iterable[int]) -> frozenset[int]:
    """What a policy gave as pCPUs, as what the actuators take; ``TypeError`` if it is no such."""
    return frozenset(operator.index(p) for p in pcpus)
