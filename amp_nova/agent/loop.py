"""One control cycle, from an observation to a record: the same code on a host and in the simulator.

The host holds the truth: what is in force is read back in every cycle, so a restart adopts what it
finds, and acting twice changes nothing.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from amp_nova.accounting import accounts
from amp_nova.accounting.accounts import Accounts
from amp_nova.agent.cycle import STAGES, Cycle, Totals
from amp_nova.agent.fast_loop import FastLoop, IpsSettings, Target
from amp_nova.agent.state import bookings, policy_runner
from amp_nova.agent.state.bookings import Bookings
from amp_nova.agent.state.memo import Memo
from amp_nova.agent.state.policy_runner import Known, PolicySettings, PolicyState
from amp_nova.control import foreign_changes, homes, ips_controller
from amp_nova.control.changes import changes
from amp_nova.control.entitlement import Context, Current, Entitlements, Terms, entitle
from amp_nova.control.foreign_changes import ForeignChanges
from amp_nova.control.homes import Instance
from amp_nova.control.own_coefficients import Choice
from amp_nova.model.allocation import (
    NOTHING_DONE,
    Allocations,
    Changes,
    Outcome,
    allocations,
    in_force,
)
from amp_nova.model.observation import Domain, DomainReading, Observation, VcpuKey, VcpuReading
from amp_nova.policies.api import Policy
from amp_nova.policies.none import NonePolicy
from amp_nova.ports import Actuator, Sensor
from amp_nova.profiling import profiles
from amp_nova.profiling.profiles import Profiles, ProfileSettings

LOG = logging.getLogger(__name__)
OWN_QUOTA = "its definition has a CPU quota of its own: remove that or the booking"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the loop runs; see the options of the same names.

    ``dry_run`` decides and changes nothing; without ``memoize`` every stage runs in every cycle.
    """

    terms: Terms = field(default_factory=Terms)
    coefficients: Choice = field(default_factory=Choice)
    profiles: ProfileSettings = field(default_factory=ProfileSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    ips: IpsSettings = field(default_factory=IpsSettings)
    drift_repairs_max: int = 3
    dry_run: bool = False
    memoize: bool = True


@dataclass(frozen=True, slots=True)
class State:
    """All that survives a cycle. ``packed``: the pCPU that each booked vCPU was packed onto."""

    policy: PolicyState
    bookings: Bookings = field(default_factory=dict)
    accounts: Accounts = field(default_factory=Accounts)
    profiles: Profiles = field(default_factory=Profiles)
    foreign: ForeignChanges = field(default_factory=ForeignChanges)
    packed: Mapping[VcpuKey, int | None] = field(default_factory=dict)
    entitlements: Entitlements = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)


class Loop:
    """Keeps what is delivered equal to what was booked, cycle by cycle."""

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
        idle_class = settings.terms.enforce and settings.terms.idle_class
        settings = replace(settings, policy=replace(settings.policy, idle_class=idle_class))
        self._settings = settings
        self._stopwatch = stopwatch
        self._memo = Memo(enabled=settings.memoize)
        self._state = State(policy_runner.begin(policy or NonePolicy(), settings.policy))
        self.fast = FastLoop(sensor, actuator, settings.ips)
        """The fast loop, to be run between the cycles while it is active."""

    def cycle(self) -> Cycle:
        """Observe, decide and act once; ``HypervisorUnavailable`` if nothing can be observed."""
        clock = [self._stopwatch()]
        seen = self._sensor.observe()
        clock.append(self._stopwatch())
        now = allocations(seen)
        state = self._measured(self._state, seen, now)
        clock.append(self._stopwatch())
        state, entitlements = self._decided(state, seen, now)
        idle = {d.domain.resource: d.idle for d in seen.domains}
        wanted = self._memo(changes, now, idle, entitlements)
        clock.append(self._stopwatch())
        outcome = NOTHING_DONE if self._settings.dry_run else self._actuator.apply(wanted)
        self._state = state = self._acted(state, seen, now, wanted, outcome)
        clock.append(self._stopwatch())
        return Cycle(
            seen,
            state.bookings,
            state.accounts,
            state.profiles,
            entitlements,
            wanted,
            outcome,
            self._totals(state),
            {s: b - a for s, a, b in zip(STAGES, clock, clock[1:], strict=False)},
            state.policy.policy.name,
        )

    @property
    def dry_run(self) -> bool:
        """Whether it decides and changes nothing."""
        return self._settings.dry_run

    def finish(self) -> None:
        """Leave limits in force that are right with nobody there to correct them."""
        self.fast.finish()

    def _measured(self, state: State, seen: Observation, now: Allocations) -> State:
        """The state with what vCPUs did since the last cycle, and what somebody else changed."""
        repairs_max = self._settings.drift_repairs_max
        limits = self.fast.limits
        foreign = foreign_changes.compare(state.foreign, seen, now, limits, repairs_max)
        for resource, name in foreign.instances.items():
            excluded = foreign.excluded(resource, seen.time_ns)
            does = "it is left alone for a while" if excluded else "they are repaired"
            LOG.warning("%s: somebody else changed its limits: %s", name, does)
        return replace(
            state,
            bookings=bookings.read(state.bookings, seen),
            accounts=accounts.advance(state.accounts, seen),
            profiles=profiles.advance(state.profiles, seen, self._settings.profiles),
            foreign=foreign,
        )

    def _decided(
        self, state: State, seen: Observation, now: Allocations
    ) -> tuple[State, Entitlements]:
        """What every vCPU is entitled to from now on."""
        terms, topology, memo = self._settings.terms, seen.topology, self._memo
        bare = tuple(self._instance(state, d, seen) for d in seen.domains)
        excluded = {i.resource for i in bare if i.excluded is not None}
        moved = {
            key: now[key]._replace(pcpus=pcpus)
            for key, pcpus in state.foreign.moved.items()
            if key[0] not in excluded
        }
        # vCPUs that somebody else moved are packed where they were before.
        instances = memo(homes.with_vcpus, bare, {**now, **moved} if moved else now)
        packed = memo(
            homes.pack, instances, topology, terms.reserve_ratio, terms.one_pcpu, state.packed
        )
        context = Context(topology, terms, packed, self._current(state, seen))
        entitlements = memo(entitle, instances, context)
        policy = policy_runner.decide(
            state.policy, self._settings.policy, seen, entitlements, _known(state)
        )
        placed = memo(
            policy_runner.with_places, entitlements, policy.places, policy.policy.name, topology
        )
        placed = policy_runner.let_go(placed, state.policy, policy)
        state = replace(
            state, policy=policy, packed=memo(homes.Packed.pcpus, packed), entitlements=placed
        )
        return state, placed

    def _instance(self, state: State, reading: DomainReading, seen: Observation) -> Instance:
        """A domain as the control stage sees it, but for its vCPUs."""
        domain = reading.domain
        booking = state.bookings[domain.resource].booking
        excluded = self._excluded(state, domain, seen)
        own: Mapping[int, Mapping[str, float]] = {}
        if excluded is None and self._settings.coefficients.adaptive_for(domain):
            own = state.profiles.coefficients(domain.resource, domain.vcpus)
        return Instance(domain.resource, booking, (), excluded, reading.idle is True, own)

    def _excluded(self, state: State, domain: Domain, seen: Observation) -> str | None:
        """Why nothing of an instance may be changed, if so."""
        if (why := seen.paused.get(domain.resource)) is not None:
            return why
        if domain.limited_elsewhere and state.bookings[domain.resource].booking.booked:
            return OWN_QUOTA
        if state.foreign.excluded(domain.resource, seen.time_ns):
            return foreign_changes.EXCLUDED
        return None

    def _current(self, state: State, seen: Observation) -> dict[VcpuKey, Current]:
        """The inputs of limits that vary, for instances that burst or book Ips."""
        limits = self.fast.limits
        return {
            (key := (d.domain.resource, v.index)): Current(
                v.bandwidth, state.accounts.of(key).banked_ref_s, limits.get(key)
            )
            for d in seen.domains
            if state.bookings[d.domain.resource].varies
            for v in d.vcpus
        }

    def _acted(
        self,
        state: State,
        seen: Observation,
        now: Allocations,
        wanted: Changes,
        outcome: Outcome,
    ) -> State:
        """The state after these changes; the fast loop follows the vCPUs it governs."""
        entitlements, undone = state.entitlements, set(outcome.failures)
        if self._settings.dry_run:
            undone, wanted = {c.key for c in wanted.vcpus}, Changes()
        now = in_force(now, wanted, outcome)
        if not self._settings.dry_run:
            self.fast.follow(_targets(state, seen, now, self.fast.sp_s))
        ran_under = self._memo(
            accounts.conditions, seen.topology, entitlements, now, self.fast.sp_s
        )
        after = state.profiles
        if wanted.vcpus:
            after = profiles.moved(after, seen, now)
        return replace(
            state,
            accounts=state.accounts.under(ran_under),
            profiles=after,
            foreign=foreign_changes.expect(state.foreign, seen, entitlements, now, undone),
            totals=_counted(state.totals, seen, wanted, outcome),
        )

    def _totals(self, state: State) -> Totals:
        """The counts so far, with those of the fast loop."""
        totals, fast = state.totals, self.fast
        return replace(
            totals,
            writes=totals.writes + fast.writes,
            plans_rejected=state.policy.rejected,
            failures=dict(Counter(totals.failures) + fast.failed),
            drift=dict(state.foreign.counts),
        )


def _known(state: State) -> Callable[[VcpuKey], Known]:
    """What a policy may know of vCPUs."""

    def known(key: VcpuKey) -> Known:
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

    return known


def _targets(
    state: State, seen: Observation, now: Allocations, sp_s: float
) -> dict[VcpuKey, Target]:
    """The vCPUs whose limits the fast loop sets until the next cycle."""
    targets = {}
    for key, entitlement in state.entitlements.items():
        if entitlement.governed_by != "ips":
            continue
        pcpus, limit, *_ = now[key]
        ips = entitlement.booking.ips
        if limit is None or ips is None or entitlement.quota is None:
            continue
        max_cores = entitlement.home.max_cores
        burst_s = state.bookings[key[0]].booking.burst_s
        core_type = seen.topology.only_type(pcpus)
        targets[key] = Target(
            ips_controller.Terms(ips, burst_s, sp_s, 1.0 if max_cores is None else max_cores),
            limit,
            core_type.name if core_type else None,
            core_type.nominal_ips if core_type else None,
        )
    return targets


def _counted(totals: Totals, seen: Observation, made: Changes, outcome: Outcome) -> Totals:
    """The counts with the changes of one cycle."""
    migrations, failures = Counter(totals.migrations), Counter(totals.failures)
    failures.update(f.reason for f in outcome.failures.values())
    failures.update(f.reason for f in outcome.idle_failures.values())
    writes = totals.writes + len(made.idle) - len(outcome.idle_failures)
    readings: dict[VcpuKey, VcpuReading] = {}
    if made.vcpus:
        readings = {(d.domain.resource, v.index): v for d in seen.domains for v in d.vcpus}
    for change in made.vcpus:
        if change.key in outcome.failures:
            continue
        writes += len(change.steps)
        for step in change.steps:
            if step.pcpus is not None:
                before = seen.topology.only_type(readings[change.key].pcpus)
                after = seen.topology.only_type(step.pcpus)
                if before is not None and after is not None and before is not after:
                    migrations[before.name, after.name] += 1
    return Totals(totals.cycles + 1, writes, 0, failures, {}, migrations)
