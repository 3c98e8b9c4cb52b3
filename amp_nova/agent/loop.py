# SPDX-License-Identifier: Apache-2.0
"""One control cycle, from an observation to a record: the same code on a host and in the simulator.

What is in force is read back from the host in every cycle. So a restarted agent adopts what it
finds, and changes are idempotent.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from msgspec import Struct, structs

from amp_nova.accounting import accounts
from amp_nova.accounting.accounts import Accounts
from amp_nova.agent.cycle import STAGES, Cycle, Totals, counted
from amp_nova.agent.state import instances, policy_runner
from amp_nova.agent.state.memo import Memo
from amp_nova.agent.state.policy_runner import PolicySettings, PolicyState
from amp_nova.control import foreign_changes, homes, limit
from amp_nova.control.changes import changes, safe_states
from amp_nova.control.context import Context, Instances, Packed, Terms
from amp_nova.control.entitlement import Entitlements, entitle
from amp_nova.control.foreign_changes import ForeignChanges
from amp_nova.control.limit import Limits
from amp_nova.hardware.effective_speed import for_admission
from amp_nova.model import allocation
from amp_nova.model.allocation import Allocations, Changes, Outcome, in_force
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Observation, VcpuKey
from amp_nova.model.topology import Topology
from amp_nova.policies.api import Policy, VcpuView
from amp_nova.policies.none import NonePolicy
from amp_nova.ports import Actuator, Sensor
from amp_nova.profiling import profiles
from amp_nova.profiling.profiles import Profiles, ProfileSettings
from amp_nova.profiling.speedup import hinted_speedup

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How the loop runs.

    ``adaptive``: own coefficients convert the bookings whose flavor does not say;
    ``dry_run``: decide, but change nothing; ``memoize``: skip stages whose inputs are unchanged.
    """

    terms: Terms = field(default_factory=Terms)
    adaptive: bool = False
    profiles: ProfileSettings = field(default_factory=ProfileSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    dry_run: bool = False
    memoize: bool = True


class State(Struct, frozen=True):
    """Everything that survives a cycle.

    ``packed``: the pCPU that each booked vCPU was packed onto; ``kept_free``: siblings that must
    stay free beside them.
    """

    policy: PolicyState
    instances: Instances = MappingProxyType({})
    accounts: Accounts = Accounts()
    profiles: Profiles = Profiles()
    foreign: ForeignChanges = ForeignChanges()
    packed: Mapping[VcpuKey, int | None] = MappingProxyType({})
    kept_free: frozenset[int] = frozenset()
    limits: Limits = Limits()
    entitlements: Entitlements = MappingProxyType({})
    totals: Totals = Totals()


class Loop:
    """Keeps delivered capacity equal to booked capacity, cycle by cycle."""

    def __init__(
        self,
        sensor: Sensor,
        actuator: Actuator,
        settings: LoopSettings | None = None,
        policy: Policy | None = None,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sensor, self._actuator = sensor, actuator
        settings = settings or LoopSettings()
        self._settings = settings
        self._stopwatch = stopwatch
        self._memo = Memo(enabled=settings.memoize)
        self._state = State(
            PolicyState(policy or NonePolicy()),
            profiles=Profiles(settings.profiles),
        )

    @property
    def tick_s(self) -> float | None:
        """Time between two ticks; ``None`` while no vCPU needs any."""
        return self._settings.terms.tick_s if self._state.limits.samples else None

    def cycle(self) -> Cycle:
        """Observe, decide and act once; returns the record of the cycle.

        Raises ``HypervisorUnavailable`` if nothing can be observed.
        """
        clock = [self._stopwatch()]
        observation = self._sensor.observe()
        clock.append(self._stopwatch())
        now = self._memo(allocation.of_host, observation.domains)
        state = self._measured(self._state, observation, now)
        clock.append(self._stopwatch())
        weights = {d.domain.resource: d.cpu_weight for d in observation.domains}
        state, writes = self._decided(state, observation, now, weights)
        clock.append(self._stopwatch())
        if self._settings.dry_run:
            outcome = Outcome(observing=True)
        else:
            outcome = self._actuator.apply(writes)
        self._state = state = self._acted(state, observation, now, writes, outcome)
        clock.append(self._stopwatch())
        return Cycle(
            observation,
            state.instances,
            state.accounts,
            state.profiles,
            state.entitlements,
            writes,
            outcome,
            replace(
                state.totals,
                plans_rejected=state.policy.rejected,
                drift=state.foreign.counts,
            ),
            {s: b - a for s, a, b in zip(STAGES, clock, clock[1:], strict=False)},
            state.policy.policy.name,
        )

    def tick(self) -> None:
        """Measure between cycles what CPU time is worth to vCPUs whose instructions are counted.

        A limit that is wrong now is changed at once.
        """
        state, terms = self._state, self._settings.terms
        samples = self._sensor.sample(state.limits.samples)
        limits, changed = limit.measured(state.limits, state.entitlements, samples, terms)
        self._state = structs.replace(state, limits=limits)
        self._throttle(changed)

    def adopt(self) -> None:
        """Adopt what is in force, because the guard acted while no cycle was completed."""
        foreign = self._state.foreign.adopting()
        limits = structs.replace(self._state.limits, adopting=None)
        self._state = structs.replace(self._state, foreign=foreign, limits=limits)

    def finish(self) -> None:
        """Leave limits in force that are right without an agent to correct them."""
        if not self._settings.dry_run:
            state = self._state
            limits = limit.without_balance(state.limits, state.entitlements, self._settings.terms)
            self._throttle(limits)

    def _throttle(self, wanted: Mapping[VcpuKey, Bandwidth | None]) -> None:
        """Write limits between cycles; those that cannot be written are decided again."""
        failures = self._actuator.throttle(wanted) if wanted else {}
        written = {key: bandwidth for key, bandwidth in wanted.items() if key not in failures}
        state, between = self._state, {**self._state.limits.between, **written}
        self._state = structs.replace(
            state,
            limits=structs.replace(state.limits, between=between),
            totals=state.totals.with_writes(len(written), failures.values()),
        )

    def _measured(self, state: State, observation: Observation, now: Allocations) -> State:
        """The state with what vCPUs did since the last cycle, and with foreign changes."""
        positions = self._memo(allocation.positions, observation.topology, now)
        booked = instances.read(state.instances, observation, adaptive=self._settings.adaptive)
        foreign = foreign_changes.compare(state.foreign, observation, now, state.limits.between)
        for resource, name in foreign.instances.items():
            does = "leaving it alone for now" if resource in foreign.excluded else "restoring them"
            LOG.warning("%s: somebody else changed its limits: %s", name, does)
        return structs.replace(
            state,
            instances=booked,
            foreign=foreign,
            accounts=accounts.advance(state.accounts, observation),
            profiles=profiles.advance(state.profiles, observation, positions),
        )

    def _decided(
        self,
        state: State,
        observation: Observation,
        now: Allocations,
        weights: Mapping[str, int | None],
    ) -> tuple[State, Changes]:
        """The state with what every vCPU is entitled to from now on, and the writes it takes."""
        terms, memo, dry_run = self._settings.terms, self._memo, self._settings.dry_run
        excluded = self._excluded(state, observation)
        kept = _where_kept(now, state.foreign, excluded)
        topology = memo(for_admission, observation.topology, terms.smt)
        own = state.profiles.coefficients(r for r, i in state.instances.items() if i.adaptive)
        here = memo(instances.on_host, state.instances, kept, weights, excluded, own)
        here = memo(homes.on_one_type, here, topology)
        packed = memo(homes.pack, here, topology, terms, state.packed, state.profiles.trials(own))
        context = Context(topology, terms, packed, state.kept_free, state.policy.placing(topology))
        entitlements = memo(entitle, here, context)
        policy = policy_runner.decide(
            state.policy, self._settings.policy, observation, entitlements, partial(_history, state)
        )
        entitlements = memo(
            policy_runner.with_places, entitlements, policy.places, policy.policy.name
        )
        entitlements = policy_runner.let_go(entitlements, state.policy, policy)
        safe = memo(safe_states, entitlements, observation.topology)
        vary = observation.topology.speeds_vary and terms.smt != "ignore"
        steady = memo(limit.steady, entitlements, topology, terms, speeds_vary=vary)
        limits = limit.carry(state.limits, steady, state.accounts.deliveries(steady.varying))
        entitlements = memo(limit.decide, steady, limits.carried, kept, context)
        entitlements, limits = limit.adopt(entitlements, {} if dry_run else now, limits)
        writes = memo(changes, now, weights, entitlements)
        state = structs.replace(
            state,
            policy=policy,
            packed=memo(Packed.pcpus, packed),
            kept_free=packed.kept_free,
            limits=limits,
            entitlements=entitlements,
        )
        return state, Changes(writes.vcpus, writes.cpu_weights, safe)

    def _excluded(self, state: State, observation: Observation) -> dict[str, str]:
        """Why instances must not be changed, by UUID."""
        refused = {}
        if self._settings.terms.one_limit:
            reasons = {r: homes.refusal(i.booking) for r, i in state.instances.items()}
            refused = {r: why for r, why in reasons.items() if why is not None}
        return {**refused, **state.foreign.excluded, **observation.paused}

    def _acted(
        self,
        state: State,
        observation: Observation,
        before: Allocations,
        writes: Changes,
        outcome: Outcome,
    ) -> State:
        """The state after these changes, and what is to be sampled until the next cycle."""
        entitlements, memo, topology = state.entitlements, self._memo, observation.topology
        not_made: set[VcpuKey | str] = {*outcome.failures, *outcome.weight_failures}
        if outcome.observing:  # nothing is expected to stay as it is
            not_made, writes = {*entitlements, *(key[0] for key in entitlements)}, Changes()
        now = in_force(before, writes, outcome)
        positions = memo(allocation.positions, topology, now)
        last = allocation.last_positions(observation, positions) if outcome.observing else positions
        ran_under = memo(
            accounts.conditions, topology, entitlements, now, last, self._settings.terms.tick_s
        )
        if outcome.observing:
            ran_under = memo(accounts.only_observed, ran_under, topology, entitlements)
        foreign = foreign_changes.expect(state.foreign, entitlements, now, not_made)
        moved = state.profiles
        if writes.vcpus:
            moved = profiles.moved(moved, observation, positions)
        return structs.replace(
            state,
            accounts=state.accounts.under(ran_under),
            profiles=moved,
            foreign=foreign,
            limits=self._sampled(state, observing=outcome.observing),
            totals=counted(state.totals, topology, before, writes, outcome),
        )

    def _sampled(self, state: State, *, observing: bool) -> Limits:
        """Limits with samples of exactly the vCPUs that are counted until the next cycle."""
        entitlements, before = state.entitlements, state.limits.samples
        counted = (
            [] if observing else [k for k, e in entitlements.items() if e.governed_by == "ips"]
        )
        samples = {key: before[key] for key in counted if key in before}
        if new := [key for key in counted if key not in before]:
            samples |= self._sensor.sample(new)
        return structs.replace(state.limits, samples=samples, between={})


def _where_kept(
    now: Allocations, foreign: ForeignChanges, excluded: Mapping[str, str]
) -> Allocations:
    """What is in force, but vCPUs that somebody else moved are where they were kept before."""
    moved = {
        key: structs.replace(now[key], pcpus=pcpus)
        for key, pcpus in foreign.moved.items()
        if key[0] not in excluded
    }
    return {**now, **moved} if moved else now


def _history(state: State, key: VcpuKey, topology: Topology) -> VcpuView:
    """What a policy may know of a vCPU from all cycles so far."""
    profile, booking = state.profiles.of(key), state.instances[key[0]].booking
    speedup = profile.sampled or profile.speedup
    return VcpuView(
        key,
        frozenset(),
        frozenset(),
        booking.weight,
        ipc=profile.per_ref_ns if profile.ipc is None else profile.ipc,
        speedup=None if speedup is None else speedup.value,
        sampled=profile.sampled is not None,
        speeds=profile.speeds,
        hint=hinted_speedup(booking.efficiency, topology),
        cpu_s=state.accounts.cpu_s(key),
        parallel=booking.parallel,
    )
