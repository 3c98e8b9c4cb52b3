"""One control cycle, from an observation to a record: the same code on a host and in the simulator.

What is in force is read back from the host in every cycle. So a restarted agent adopts what it
finds, and changes are idempotent.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from msgspec import Struct, structs

from amp_nova.accounting import accounts
from amp_nova.accounting.accounts import Accounts
from amp_nova.agent.cycle import STAGES, Cycle, Totals, counted
from amp_nova.agent.fast_loop import FastLoop, IpsSettings, Target
from amp_nova.agent.state import bookings, policy_runner
from amp_nova.agent.state.bookings import Bookings, Choice
from amp_nova.agent.state.memo import Memo
from amp_nova.agent.state.policy_runner import Known, PolicySettings, PolicyState
from amp_nova.control import adoption, foreign_changes, homes, ips_controller, one_limit
from amp_nova.control.changes import changes
from amp_nova.control.context import Context, Current, Terms
from amp_nova.control.entitlement import Entitlements, entitle
from amp_nova.control.foreign_changes import ForeignChanges
from amp_nova.control.safe_state import safe_states
from amp_nova.hardware.effective_speed import for_admission
from amp_nova.model import allocation
from amp_nova.model.allocation import NOTHING_DONE, Allocations, Changes, Outcome, in_force
from amp_nova.model.observation import Observation, VcpuKey
from amp_nova.model.topology import Topology
from amp_nova.policies.api import Policy
from amp_nova.policies.none import NonePolicy
from amp_nova.ports import Actuator, Sensor
from amp_nova.profiling import profiles
from amp_nova.profiling.profiles import Profiles, ProfileSettings

LOG = logging.getLogger(__name__)
PER_VCPU = homes.pack, entitle
PER_INSTANCE = one_limit.pack, one_limit.entitle
"""The functions that decide about bookings: with a limit per vCPU, and with one per instance."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the loop runs.

    ``dry_run``: decide, but change nothing; ``memoize``: skip stages whose inputs are unchanged;
    ``accounts``: keep whole accounts, for records, and not only what decisions depend on.
    """

    terms: Terms = field(default_factory=Terms)
    coefficients: Choice = field(default_factory=Choice)
    profiles: ProfileSettings = field(default_factory=ProfileSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    ips: IpsSettings = field(default_factory=IpsSettings)
    drift_repairs_max: int = 3
    dry_run: bool = False
    memoize: bool = True
    accounts: bool = True


class State(Struct, frozen=True):
    """Everything that survives a cycle.

    ``packed``: the pCPU that each booked vCPU was packed onto; ``kept_free``: siblings that must
    stay free beside them; ``easing``: vCPUs whose adopted limits are still being changed step by
    step, ``None`` before the limits in force have been adopted.
    """

    policy: PolicyState
    bookings: Bookings = MappingProxyType({})
    accounts: Accounts = Accounts()
    profiles: Profiles = Profiles()
    foreign: ForeignChanges = ForeignChanges()
    packed: Mapping[VcpuKey, int | None] = MappingProxyType({})
    kept_free: frozenset[int] = frozenset()
    easing: frozenset[VcpuKey] | None = None
    entitlements: Entitlements = MappingProxyType({})
    totals: Totals = Totals()


class Loop:
    """Keeps delivered capacity equal to booked capacity, cycle by cycle."""

    def __init__(
        self,
        sensor: Sensor,
        actuator: Actuator,
        settings: Settings | None = None,
        policy: Policy | None = None,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sensor, self._actuator = sensor, actuator
        settings = settings or Settings()
        self._settings = settings
        self._stopwatch = stopwatch
        self._memo = Memo(enabled=settings.memoize)
        begun = policy_runner.begin(policy or NonePolicy(), settings.policy)
        known, kept = Profiles(settings.profiles), Accounts(whole=settings.accounts)
        self._state = State(begun, profiles=known, accounts=kept)
        self.fast = FastLoop(sensor, actuator, settings.ips)
        """The fast loop, to be run between cycles while it is active."""

    def cycle(self) -> Cycle:
        """Observe, decide and act once; returns the record of the cycle.

        Raises ``HypervisorUnavailable`` if nothing can be observed.
        """
        clock, memo = [self._stopwatch()], self._memo
        seen = self._sensor.observe()
        clock.append(self._stopwatch())
        readings = {d.domain.resource: d for d in seen.domains}
        each = memo.each(allocation.of_domain, readings, allocation.unchanged)
        now = memo(allocation.of_host, each)
        state = self._measured(self._state, seen, now)
        clock.append(self._stopwatch())
        weights = {resource: reading.cpu_weight for resource, reading in readings.items()}
        state = _adopted(self._decided(state, seen, now, weights), now)
        safe = memo(safe_states, state.entitlements, seen.topology)
        needed = memo(changes, now, weights, state.entitlements)
        wanted = Changes(needed.vcpus, needed.cpu_weights, safe)
        clock.append(self._stopwatch())
        outcome = NOTHING_DONE if self._settings.dry_run else self._actuator.apply(wanted)
        self._state = state = self._acted(state, seen, now, wanted, outcome)
        clock.append(self._stopwatch())
        return Cycle(
            seen,
            state.bookings,
            state.accounts,
            state.profiles,
            state.entitlements,
            wanted,
            outcome,
            self._totals(state),
            {s: b - a for s, a, b in zip(STAGES, clock, clock[1:], strict=False)},
            state.policy.policy.name,
        )

    @property
    def dry_run(self) -> bool:
        """Whether the loop decides, but changes nothing."""
        return self._settings.dry_run

    def adopt(self) -> None:
        """Adopt what is in force, because the guard acted while no cycle was completed."""
        foreign = self._state.foreign.adopting()
        self._state = structs.replace(self._state, foreign=foreign, easing=None)

    def finish(self) -> None:
        """Leave limits in force that are right without an agent to correct them."""
        self.fast.finish()

    def _measured(self, state: State, seen: Observation, now: Allocations) -> State:
        """The state with what vCPUs did since the last cycle, and with foreign changes."""
        positions = self._memo(allocation.positions, seen.topology, now)
        booked = bookings.read(state.bookings, seen, self._settings.coefficients)
        foreign = foreign_changes.compare(
            state.foreign, seen, now, self.fast.limits, self._settings.drift_repairs_max
        )
        for resource, name in foreign.instances.items():
            excluded = resource in foreign.excluded
            does = "it is left alone for a while" if excluded else "they are repaired"
            LOG.warning("%s: somebody else changed its limits: %s", name, does)
        return structs.replace(
            state,
            bookings=booked,
            foreign=foreign,
            accounts=accounts.advance(state.accounts, seen),
            profiles=profiles.advance(state.profiles, seen, positions),
        )

    def _decided(
        self,
        state: State,
        seen: Observation,
        now: Allocations,
        weights: Mapping[str, int | None],
    ) -> State:
        """The state with what every vCPU is entitled to from now on."""
        terms, memo = self._settings.terms, self._memo
        topology = memo(for_admission, seen.topology, terms.smt)
        pack, decide = PER_INSTANCE if terms.one_limit else PER_VCPU
        refused = bookings.refused(state.bookings) if terms.one_limit else {}
        excluded = {**refused, **state.foreign.excluded, **seen.paused}
        # vCPUs that somebody else moved are packed where they were kept before.
        moved = {
            key: structs.replace(now[key], pcpus=pcpus)
            for key, pcpus in state.foreign.moved.items()
            if key[0] not in excluded
        }
        own = state.profiles.coefficients(r for r, b in state.bookings.items() if b.adaptive)
        places = {**now, **moved} if moved else now
        instances = memo(bookings.instances, state.bookings, places, weights, excluded, own)
        instances = memo(homes.without_places, instances, topology, state.kept_free)
        packed = memo(pack, instances, topology, terms.reserve_ratio, terms.one_pcpu, state.packed)
        current = self._current(state, now, seen.topology)
        context = Context(topology, terms, packed, current, state.kept_free)
        entitlements = memo(decide, instances, context)
        policy = policy_runner.decide(
            state.policy, self._settings.policy, seen, entitlements, partial(_known, state)
        )
        placed = memo(
            policy_runner.with_places, entitlements, policy.places, policy.policy.name, topology
        )
        placed = policy_runner.let_go(placed, state.policy, policy)
        return structs.replace(
            state,
            policy=policy,
            packed=memo(homes.Packed.pcpus, packed),
            kept_free=packed.kept_free,
            entitlements=placed,
        )

    def _current(self, state: State, now: Allocations, host: Topology) -> dict[VcpuKey, Current]:
        """The inputs of limits that vary: with bursts, bookings in Ips, or pCPUs that slow down."""
        vary = host.speeds_vary and self._settings.terms.smt != "ignore"
        varying = {
            resource
            for resource, known in state.bookings.items()
            if known.varies or (vary and known.booking.booked)
        }
        limits, made = self.fast.limits, {}
        for key, found in now.items() if varying else ():
            if key[0] in varying:
                carried, last = state.accounts.of(key).carried, limits.get(key)
                lately = carried.lately if vary else None
                made[key] = Current(found.bandwidth, carried.banked_ref_s, last, lately)
        return made

    def _acted(
        self,
        state: State,
        seen: Observation,
        before: Allocations,
        wanted: Changes,
        outcome: Outcome,
    ) -> State:
        """The state after these changes; hands the vCPUs that Ips governs to the fast loop."""
        entitlements, memo, topology = state.entitlements, self._memo, seen.topology
        not_made: set[VcpuKey | str] = {*outcome.failures, *outcome.weight_failures}
        if self._settings.dry_run:
            not_made, wanted = {*(c.key for c in wanted.vcpus), *wanted.cpu_weights}, Changes()
        now = in_force(before, wanted, outcome)
        sp_s = self.fast.sp_s
        if not self._settings.dry_run:
            self.fast.follow(_targets(state, topology, now, sp_s))
        positions = memo(allocation.positions, topology, now)
        ran_under = memo(accounts.conditions, topology, entitlements, now, positions, sp_s)
        foreign = foreign_changes.expect(state.foreign, entitlements, now, not_made)
        moved = profiles.moved(state.profiles, seen, positions) if wanted.vcpus else state.profiles
        return structs.replace(
            state,
            accounts=state.accounts.under(ran_under),
            profiles=moved,
            foreign=foreign,
            totals=counted(state.totals, topology, before, wanted, outcome),
        )

    def _totals(self, state: State) -> Totals:
        """The counts since the loop started, including those of the fast loop."""
        totals, fast = state.totals, self.fast
        failed = Counter(totals.failures) + fast.failed if fast.failed else totals.failures
        writes, rejected = totals.writes + fast.writes, state.policy.rejected
        drift, migrations = state.foreign.counts, totals.migrations
        return Totals(totals.cycles, writes, rejected, failed, drift, migrations)


def _adopted(state: State, now: Allocations) -> State:
    """The state with limits that lead step by step from what was found to what is wanted."""
    if state.easing is not None and not state.easing:
        return state
    eased, left = adoption.eased(state.entitlements, now, state.easing)
    return structs.replace(state, entitlements=eased, easing=left)


def _known(state: State, key: VcpuKey) -> Known:
    """What a policy may know about a vCPU."""
    profile, booking = state.profiles.of(key), state.bookings[key[0]].booking
    measured = profile.sampled or profile.speedup
    return Known(
        profile.per_ref_ns if profile.ipc is None else profile.ipc,
        None if measured is None else measured.value,
        state.accounts.cpu_s(key),
        profile.sampled is not None,
        booking.efficiency,
        booking.weight,
    )


def _targets(
    state: State, topology: Topology, now: Allocations, sp_s: float
) -> dict[VcpuKey, Target]:
    """The vCPUs whose limits the fast loop sets until the next cycle."""
    targets = {}
    for key, entitlement in state.entitlements.items():
        if entitlement.governed_by != "ips" or entitlement.quota is None:
            continue
        limit, ips = now[key].bandwidth, entitlement.booking.ips
        if limit is None or ips is None:
            continue
        max_cores = entitlement.home.max_cores
        burst_s = state.bookings[key[0]].booking.burst_s
        core_type = topology.only_type(now[key].pcpus)
        targets[key] = Target(
            ips_controller.Terms(ips, burst_s, sp_s, 1.0 if max_cores is None else max_cores),
            limit,
            core_type.name if core_type else None,
            core_type.nominal_ips if core_type else None,
        )
    return targets
