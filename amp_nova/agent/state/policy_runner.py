# SPDX-License-Identifier: Apache-2.0
"""Asks the best-effort policy for a decision once per interval, and checks its answer."""

import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from msgspec import Struct, structs

from amp_nova.agent.state import parallel_programs
from amp_nova.agent.state.idle_capacity import (
    BookedUse,
    Places,
    Readings,
    RecentDemand,
    booked_use,
    overtaken,
)
from amp_nova.agent.state.parallel_programs import Evidence
from amp_nova.control.entitlement import Entitlement, Entitlements
from amp_nova.model.observation import Observation, VcpuKey
from amp_nova.model.topology import Topology
from amp_nova.policies.api import Decision, HostView, Policy, VcpuView, check
from amp_nova.policies.none import NonePolicy

LOG = logging.getLogger(__name__)
FAULTS_MAX = 5
"""Unusable answers in a row after which the policy is replaced by ``none``."""
_EARLY_RATIO = 0.95
"""An interval counts as over after this part of it. Cycles begin slightly early or late, so that
with whole intervals the policy would sometimes be asked a cycle too late."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """How policies are run; ``interval_s``: as in kwon2011; ``seed``: for random decisions."""

    interval_s: float = 2.5
    seed: int = 0


History = Callable[[VcpuKey, Topology], VcpuView]
"""The history of a vCPU: its view, with its total CPU time, and without what this module adds."""


class _Now(Struct, frozen=True):
    """The inputs of a decision that come from the present observation."""

    time_ns: int
    topology: Topology
    readings: Readings
    history: Mapping[VcpuKey, VcpuView]


class LastDecision(Struct, frozen=True):
    """The last time the policy was asked: when, with which readings, and what it remembers.

    ``number``: how often it has been asked; ``early``: whether it wants to be asked before the
    interval is over; ``early_ns``: when it last was.
    """

    time_ns: int | None = None
    number: int = 0
    readings: Readings = MappingProxyType({})
    cpu_s: Mapping[VcpuKey, tuple[float, ...]] = MappingProxyType({})
    memory: object = None
    early: bool = False
    early_ns: int | None = None


class PolicyState(Struct, frozen=True):
    """A policy between two cycles.

    ``places``: the pCPUs of the vCPUs that it has placed; ``placed``: all vCPUs that it ever
    placed, to be released when it is dropped; ``rejected``: unusable answers, the last ``faults``
    of them in a row; ``evidence``: which instances seem to run parallel programs.
    """

    policy: Policy
    last: LastDecision = LastDecision()
    places: Places = MappingProxyType({})
    placed: frozenset[VcpuKey] = frozenset()
    rejected: int = 0
    faults: int = 0
    demand: RecentDemand = RecentDemand()
    use: BookedUse = BookedUse()
    evidence: Mapping[str, Evidence] = MappingProxyType({})

    def placing(self, topology: Topology) -> bool:
        """Whether it places best effort on this host."""
        return topology.asymmetric and not isinstance(self.policy, NonePolicy)


def decide(
    state: PolicyState,
    settings: PolicySettings,
    observation: Observation,
    entitlements: Entitlements,
    history: History,
) -> PolicyState:
    """Ask the policy if an interval is over, or if demand has changed since its last answer."""
    last, interval_ns = state.last, settings.interval_s * 1e9
    passed_ns = 0 if last.time_ns is None else observation.time_ns - last.time_ns
    due = last.time_ns is None or not 0 <= passed_ns < _EARLY_RATIO * interval_ns
    if isinstance(state.policy, NonePolicy) or not (due or last.early):
        return state
    movable = {key: e.allowed for key, e in entitlements.items() if placeable(e)}
    if not movable:
        return state
    readings = {(d.domain.resource, v.index): v for d in observation.domains for v in d.vcpus}
    if last.early:
        state = structs.replace(state, demand=state.demand.after(observation.time_ns, readings))
    if not due:
        recent = (
            last.early_ns is not None and 0 <= observation.time_ns - last.early_ns < interval_ns
        )
        if recent or not overtaken(
            state.demand, state.use, observation.topology, state.places, movable
        ):
            return state
        state = structs.replace(state, last=structs.replace(last, early_ns=observation.time_ns))
    views = {key: history(key, observation.topology) for key in readings}
    now = _Now(observation.time_ns, observation.topology, readings, views)
    return _ask(state, settings, now, entitlements)


def _ask(
    state: PolicyState, settings: PolicySettings, now: _Now, entitlements: Entitlements
) -> PolicyState:
    elapsed_ns = abs(now.time_ns - (state.last.time_ns or now.time_ns))
    ratios = {key: _ratios(state, key, now) for key in now.readings}
    demand_ratios = {key: ratio[1] for key, ratio in ratios.items() if ratio is not None}
    use = booked_use(state.use, entitlements, demand_ratios, state.demand, elapsed_ns / 1e9)
    state = structs.replace(state, use=use)
    view = _view(state, settings, now, entitlements, ratios)
    evidence = parallel_programs.advance(state.evidence, view.vcpus, view.elapsed_s)
    view = replace(view, vcpus=parallel_programs.recognised(view.vcpus, evidence))
    last = structs.replace(
        state.last,
        time_ns=now.time_ns,
        number=state.last.number + 1,
        readings=now.readings,
        cpu_s={key: view.cpu_s for key, view in now.history.items()},
    )
    state = structs.replace(state, last=last, evidence=evidence)
    return (
        _answered(state, view, now.readings)
        if view.asymmetric
        else structs.replace(state, places={})
    )


def _answered(state: PolicyState, view: HostView, readings: Readings) -> PolicyState:
    """The state with the policy's answer; with one more fault if the answer is unusable."""
    try:
        decided = state.policy.decide(view)
        if not isinstance(decided, Decision):
            decided = Decision(decided)
        # IDs that are not integers raise TypeError.
        places = {k: frozenset(map(operator.index, ids)) for k, ids in decided.places.items()}
        check(places, {v.key: v.allowed for v in view.vcpus}, view.topology)
    except Exception as exc:  # noqa: BLE001 - third-party code may raise anything
        return _fault(state, exc)
    return structs.replace(
        state,
        last=structs.replace(state.last, memory=decided.memory, early=decided.early),
        places=places,
        placed=(state.placed | places.keys()) & readings.keys(),
        faults=0,
    )


def _fault(state: PolicyState, exc: Exception) -> PolicyState:
    """The state with one more fault and unchanged places; drops the policy after too many."""
    name = state.policy.name
    LOG.warning("policy %s returned an invalid plan: %s", name, exc)
    state = structs.replace(state, rejected=state.rejected + 1, faults=state.faults + 1)
    if state.faults < FAULTS_MAX:
        return state
    LOG.error("policy %s failed %d times in a row: using none", name, FAULTS_MAX)
    last = structs.replace(state.last, memory=None, early=False)
    return structs.replace(state, policy=NonePolicy(), last=last, places={}, faults=0)


def with_places(entitlements: Entitlements, places: Places, policy: str) -> Entitlements:
    """The entitlements, with the places that the policy of this name chose for best effort."""
    reason = f"policy {policy}"
    placed = dict(entitlements)
    for key, place in places.items():
        entitlement = placed.get(key)
        if entitlement is None or not placeable(entitlement) or not place & entitlement.allowed:
            continue
        pcpus = place & entitlement.allowed
        placed[key] = structs.replace(entitlement, pcpus=pcpus, governed_by="policy", reason=reason)
    return placed


def let_go(entitlements: Entitlements, before: PolicyState, after: PolicyState) -> Entitlements:
    """The entitlements; if the policy was dropped in this cycle, its vCPUs may run anywhere."""
    if before.policy is after.policy:
        return entitlements
    reason = f"policy {before.policy.name} was dropped"
    return {
        key: structs.replace(e, pcpus=e.allowed, governed_by="policy", reason=reason)
        if key in after.placed and placeable(e)
        else e
        for key, e in entitlements.items()
    }


def placeable(entitlement: Entitlement) -> bool:
    """Whether a policy may place a vCPU."""
    return entitlement.booking.kind == "best_effort" and entitlement.governed_by != "excluded"


def _view(
    state: PolicyState,
    settings: PolicySettings,
    now: _Now,
    entitlements: Entitlements,
    ratios: Mapping[VcpuKey, tuple[float, float] | None],
) -> HostView:
    last, vcpus = state.last, []
    for key, entitlement in entitlements.items():
        if placeable(entitlement):
            reading, view = now.readings[key], now.history[key]
            ran_ratio, demand_ratio = ratios[key] or (None, None)
            vcpu = structs.replace(
                view,
                pcpus=reading.pcpus,
                allowed=entitlement.allowed,
                utilization_ratio=ran_ratio,
                demand_ratio=demand_ratio,
                last_pcpu=reading.last_pcpu,
                asleep=state.demand.asleep(key),
                cpu_s=_since(last.cpu_s.get(key, ()), view.cpu_s),
            )
            vcpus.append(vcpu)
    return HostView(
        now.topology,
        tuple(vcpus),
        _free_cores(state, now.topology, entitlements),
        last.number,
        settings.seed,
        last.memory,
        max(0, now.time_ns - (last.time_ns or now.time_ns)) / 1e9,
        settings.interval_s,
        frozenset(e.home.pcpu for e in entitlements.values() if e.home.pcpu is not None),
    )


def _free_cores(
    state: PolicyState, topology: Topology, entitlements: Entitlements
) -> dict[int, float]:
    """The share of every pCPU that bookings leave to best effort."""
    free = {p.id: 1.0 for p in topology.pcpus}
    for key, entitlement in entitlements.items():
        home = entitlement.home
        if home.pcpu is not None:
            used = state.use.cores.get(key, home.cores or 0.0)
            free[home.pcpu] -= 0.0 if key in state.use.asleep else used
            for sibling in topology.siblings_of(home.pcpu) if home.whole_core else ():
                free[sibling] = 0.0
    return free


def _ratios(state: PolicyState, key: VcpuKey, now: _Now) -> tuple[float, float] | None:
    """Shares of the time since the last decision in which a vCPU ran, and wanted to run.

    ``None`` if they are unknown.
    """
    before, reading = state.last.readings.get(key), now.readings[key]
    wall_ns = now.time_ns - (state.last.time_ns or 0)
    if before is None or wall_ns <= 0 or reading.run_ns < before.run_ns:
        return None
    ran = (reading.run_ns - before.run_ns) / wall_ns
    return ran, min(1.0, ran + max(0, reading.wait_ns - before.wait_ns) / wall_ns)


def _since(before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, ...]:
    """What was added since ``before``; all of it if ``before`` is not comparable."""
    if len(before) != len(now):
        return now
    return tuple([max(0.0, b - a) for a, b in zip(before, now, strict=True)])
