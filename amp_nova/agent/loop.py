"""One control cycle: the same code on a real host and in the simulator.

observe -> account -> decide (booked, then best effort) -> diff -> apply; and a report when somebody
asks for one. The host holds the truth: what holds now is read back in every cycle, so a restart
adopts what is there, and acting twice changes nothing.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from amp_nova.agent.cycle import Cycle, CycleReport, DomainReport, Totals, VcpuReport
from amp_nova.agent.fast_loop import FastLoop, Governed
from amp_nova.agent.state.accounts import Books, tenures
from amp_nova.agent.state.entitlements import Promises
from amp_nova.agent.state.foreign_changes import Watch
from amp_nova.agent.state.policy_runner import BestEffort, Known
from amp_nova.agent.state.profiles import Estimates, Recall, no_lessons
from amp_nova.control import burst, changes, entitlement
from amp_nova.control import ips_controller as ips_controller_
from amp_nova.control.entitlement import Promise, Terms
from amp_nova.control.own_coefficients import Choice
from amp_nova.model import allocation
from amp_nova.model.allocation import Change, Failure, Grant
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import DomainReading, Observation, VcpuKey, VcpuReading
from amp_nova.policies.api import Policy
from amp_nova.policies.none import NonePolicy
from amp_nova.ports import Actuator, FastPort, Sensor
from amp_nova.profiling.speedup import MissCost, MissSample

LOG = logging.getLogger(__name__)
STAGES = ("observe", "account", "decide", "apply", "report")


_Done = tuple[Cycle, Observation, Mapping[VcpuKey, Promise], Mapping[VcpuKey, Failure]]
"""What a report is made from."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the loop runs; see the options of the same names.

    ``dry_run`` decides and changes nothing; without ``enforce`` bookings are accounted only.
    """

    terms: Terms = field(default_factory=Terms)
    coefficients: Choice = field(default_factory=Choice)
    miss: MissCost | None = None
    ips_controller: str = "default"
    sp_s: float = 0.1
    window_s: float = 3.0
    cycle_s: float = 1.0
    policy_interval_s: float = 2.5
    policy_moves_max: int | None = None
    drift_repairs_max: int = 3
    dry_run: bool = False
    enforce: bool = True
    seed: int = 0


class Loop:
    """Keeps what is delivered equal to what was booked, cycle by cycle."""

    def __init__(
        self,
        sensor: Sensor,
        actuator: Actuator,
        settings: Settings | None = None,
        policy: Policy | None = None,
        stopwatch: Callable[[], float] = time.perf_counter,
        fast: FastPort | None = None,
        recall: Recall = no_lessons,
    ) -> None:
        """Without ``fast`` nothing is kept by counting; ``recall``: earlier ``lessons``, if any."""
        self._sensor, self._actuator = sensor, actuator
        self._settings = settings = settings or Settings()
        terms = _terms(settings.terms, counts=fast is not None)
        self.fast = _fast_loop(settings, fast)
        """The fast loop, to be run between the cycles while it governs anything."""
        self._stopwatch, self._lock = stopwatch, threading.Lock()
        self._books = Books(settings.window_s)
        turn_s = settings.policy_interval_s
        self._estimates = Estimates(settings.coefficients, settings.miss, recall, turn_s)
        self._watch = Watch(settings.drift_repairs_max)
        self._promises = Promises(terms, self._watch, self._estimates, self._limit)
        lends = settings.enforce and settings.terms.best_effort_yields
        self._best_effort = BestEffort(
            policy or NonePolicy(), turn_s, settings.seed, settings.policy_moves_max, lends=lends
        )
        self._settled: Mapping[VcpuKey, Promise] | None = None
        """The promises that hold as they are: there is nothing to change, nor to remember anew."""
        self._governing: tuple[object, Sequence[Grant]] = (None, ())
        self._banking: tuple[object, Mapping[VcpuKey, burst.Burst]] = (None, {})
        self._bursts: Mapping[VcpuKey, Bandwidth | None] = {}
        self._cycles, self._writes = 0, 0
        self._failed: Counter[str] = Counter()
        self._migrated: Counter[tuple[str, str]] = Counter()
        self._done: _Done | None = None
        self._report: CycleReport | None = None
        self._report_s = 0.0
        self.changes: tuple[Change, ...] = ()
        """What the last cycle changed or, with ``dry_run``, would have changed."""
        self.precedence: dict[str, bool] = {}
        """Instances that it made yield, or yield no longer."""

    @property
    def policy(self) -> str:
        """Name of the best-effort policy in force."""
        return self._best_effort.policy.name

    @property
    def lessons(self) -> Mapping[VcpuKey, MissSample]:
        """What vCPUs taught about the cost of a cache miss."""
        return self._estimates.lessons

    def cycle(self) -> CycleReport:
        """``act`` once, and what came of it."""
        self.act()
        return self.report()

    def act(self) -> Cycle:
        """Observe, decide and act once; ``HypervisorUnavailable`` if nothing can be observed."""
        clock = [self._stopwatch()]
        seen = self._sensor.observe()
        clock.append(self._stopwatch())
        with self._lock:
            promises, failures = self._decide_and_do(seen, clock)
            took = {s: b - a for s, a, b in zip(STAGES, clock, clock[1:], strict=False)}
            took["report"], self._report_s = self._report_s, 0.0
            cycle = Cycle(seen.time_ns, seen.topology, took, promises)
            self._done, self._report = (cycle, seen, promises, failures), None
        return cycle

    def _decide_and_do(
        self, seen: Observation, clock: list[float]
    ) -> tuple[Mapping[VcpuKey, Promise], Mapping[VcpuKey, Failure]]:
        """What is promised and what failed; ``clock`` takes the time after every stage."""
        self._books.enter(seen)
        self._estimates.enter(seen)
        self._watch.look(seen, self._limit)
        clock.append(self._stopwatch())
        governs = self.fast is not None and self.fast.governs
        promises = self._promises.of(seen, governs=governs)
        self._bursts = self._burst(seen, promises)
        self.changes = self._changes(seen, promises)
        clock.append(self._stopwatch())
        failures = {} if self._settings.dry_run else self._actuator.apply(self.changes)
        self._precede(seen)
        self._remember(seen, promises, failures)
        self._govern(seen, promises, failures)
        clock.append(self._stopwatch())
        return promises, failures

    def report(self) -> CycleReport:
        """What the last cycle found and did, from any thread; there must have been one.

        It is made when somebody asks: most cycles nobody does.
        """
        with self._lock:
            if self._report is None:
                assert self._done is not None
                began = self._stopwatch()
                cycle, seen, promises, failures = self._done
                domains = tuple(self._domain_report(d, promises, failures) for d in seen.domains)
                took_s = self._stopwatch() - began
                self._report_s += took_s
                self._report = CycleReport(
                    cycle.time_ns,
                    cycle.topology,
                    domains,
                    len(self.changes),
                    self._totals(),
                    {**cycle.stage_s, "report": took_s},
                    self._estimates.drift(cycle.time_ns),
                )
            return self._report

    def settle(self) -> None:
        """Leave limits behind that are right without anybody who looks after them."""
        if self.fast is not None:
            self.fast.settle()

    def _limit(self, key: VcpuKey) -> Bandwidth | None:
        """The limit that the fast loop wrote last, if it governs that vCPU."""
        return self.fast.limit(key) if self.fast is not None else None

    def _govern(
        self,
        seen: Observation,
        promises: Mapping[VcpuKey, Promise],
        failures: Mapping[VcpuKey, Failure],
    ) -> None:
        """Hand the fast loop the vCPUs it governs, with the limits in force after this cycle."""
        if self.fast is None or (not self.fast.governs and not self._governed(promises)):
            return
        now = _readings(seen)
        for change in self.changes:
            for step in change.steps if change.key not in failures else ():
                now[change.key] = allocation.after(now[change.key], step)
        vcpus = {}
        for grant in self._governed(promises):
            promise, limit = promises[grant.key], now[grant.key].bandwidth
            core_type = seen.topology.only_type(now[grant.key].pcpus)
            booking = self._promises.booking_of(grant.key[0])
            if limit is not None and promise.booking.ips is not None:
                most = 1.0 if promise.most_cores is None else promise.most_cores
                vcpus[grant.key] = Governed(
                    ips_controller_.Terms(
                        promise.booking.ips, booking.burst_s, self.fast.sp_s, most
                    ),
                    limit,
                    core_type.name if core_type else None,
                    core_type.nominal_ips if core_type else None,
                )
        self.fast.govern(vcpus)

    def _governed(self, promises: Mapping[VcpuKey, Promise]) -> Sequence[Grant]:
        """Grants whose limits are the fast loop's."""
        if promises is not self._governing[0]:
            grants = [g for g in self._granted(promises) if g.governed]
            self._governing = (promises, grants)
        return self._governing[1]

    def _granted(self, promises: Mapping[VcpuKey, Promise]) -> list[Grant]:
        """What the contract grants, as far as it is enforced."""
        if not self._settings.enforce:
            return []
        granted = [p.grant for p in promises.values() if p.grant is not None]
        if not self._bursts:
            return granted
        return [replace(g, bandwidth=self._bursts.get(g.key, g.bandwidth)) for g in granted]

    def _burst(
        self, seen: Observation, promises: Mapping[VcpuKey, Promise]
    ) -> Mapping[VcpuKey, Bandwidth | None]:
        """Limits until the next cycle of those that may bank what they do not use."""
        if promises is not self._banking[0]:
            found = {key: p.burst for key, p in promises.items() if p.burst is not None}
            self._banking = (promises, found)
        bursts = self._banking[1]
        if not bursts:
            return {}
        now, cycle_s = _readings(seen), self._settings.cycle_s
        banked = {key: self._books.account(key).banked_ref_s for key in bursts}
        return {k: burst.limit(b, banked[k], cycle_s, now[k].bandwidth) for k, b in bursts.items()}

    def _changes(
        self, seen: Observation, promises: Mapping[VcpuKey, Promise]
    ) -> tuple[Change, ...]:
        """What the policy asks for, and the contract for every vCPU it did not place."""
        by_policy = self._best_effort.grants(seen, promises, self._known)
        if not by_policy and promises is self._settled and not self._bursts:
            return ()
        placed = {g.key: g for g in by_policy}
        for granted in self._granted(promises):
            place = placed.get(granted.key, granted)
            if place is not granted and granted.limits:
                core_type = seen.topology.only_type(place.pcpus)
                place = entitlement.within_room(place, promises[place.key].rooms, core_type)
            placed[granted.key] = place
        return changes.diff(_readings(seen), placed.values())

    def _known(self, key: VcpuKey) -> Known:
        """What a policy may know of a vCPU."""
        insight = self._estimates.insight(key)
        measured = insight.sampled or insight.speedup
        speedup = None if measured is None else measured.value
        cpu_s = self._books.cpu_s(key)
        ipc = insight.per_ref_ns if insight.ipc is None else insight.ipc
        hint = self._promises.booking_of(key[0]).efficiency
        return Known(ipc, speedup, cpu_s, insight.sampled is not None, hint)

    def _precede(self, seen: Observation) -> None:
        """Let best effort yield to bookings, wherever that is not so yet."""
        self.precedence = {}
        if not (self._settings.enforce and self._settings.terms.best_effort_yields):
            return
        for reading in seen.domains:
            resource, now = reading.domain.resource, reading.yields
            yields = self._promises.yielding.get(resource)
            if yields is not None and now is not None and yields != now:
                self.precedence[resource] = yields
        if self.precedence and not self._settings.dry_run:
            failures = self._actuator.precede(self.precedence)
            self._writes += len(self.precedence) - len(failures)
            self._failed.update(f.reason for f in failures.values())

    def _remember(
        self,
        seen: Observation,
        promises: Mapping[VcpuKey, Promise],
        failures: Mapping[VcpuKey, Failure],
    ) -> None:
        """Note what was done, and under what terms every vCPU runs until the next cycle."""
        self._cycles += 1
        if not self.changes and promises is self._settled and not self._bursts:
            return
        now = _readings(seen)
        undone = set(failures)
        for change in self.changes:
            if self._settings.dry_run or change.key in failures:
                undone.add(change.key)
                continue
            self._writes += len(change.steps)
            for step in change.steps:
                before = now[change.key]
                now[change.key] = allocation.after(before, step)
                if step.pcpus is not None:
                    self._count_move(seen, before.pcpus, step.pcpus)
            self._estimates.moved(seen, change.key, now[change.key])
        self._failed.update(f.reason for f in failures.values())
        # Where best effort is, and the limit that goes with it, is the policy's: no quarrel.
        undone |= {key for key, promise in promises.items() if promise.rooms}
        self._watch.expect(seen, (g for g in self._granted(promises) if g.key not in undone))
        self._promises.forget_but(d.domain.resource for d in seen.domains)
        self._books.agree(tenures(seen.topology, promises, now, self._settings.sp_s))
        self._settled = None if self.changes else promises

    def _count_move(self, seen: Observation, old: frozenset[int], new: frozenset[int]) -> None:
        before, after = seen.topology.only_type(old), seen.topology.only_type(new)
        if before is not None and after is not None and before is not after:
            self._migrated[before.name, after.name] += 1

    def _domain_report(
        self,
        seen: DomainReading,
        promises: Mapping[VcpuKey, Promise],
        failures: Mapping[VcpuKey, Failure],
    ) -> DomainReport:
        resource = seen.domain.resource
        vcpus = []
        for reading in seen.vcpus:
            key = (resource, reading.index)
            failed = failures.get(key)
            vcpus.append(
                VcpuReport(
                    reading,
                    promises[key],
                    self._books.account(key),
                    failed.message if failed else None,
                    self._estimates.insight(key),
                )
            )
        counts, total = self._books.ratios(resource)
        problem = self._promises.booking(seen.domain)[1] or seen.failure
        return DomainReport(
            seen.domain, tuple(vcpus), counts, total, problem, yields=bool(seen.yields)
        )

    def _totals(self) -> Totals:
        fast = self.fast
        return Totals(
            self._cycles,
            self._writes + (fast.writes if fast else 0),
            self._best_effort.rejected,
            dict(self._failed + fast.failed if fast else self._failed),
            dict(self._watch.counts),
            dict(self._migrated),
        )


def _readings(seen: Observation) -> dict[VcpuKey, VcpuReading]:
    return {(d.domain.resource, v.index): v for d in seen.domains for v in d.vcpus}


def _terms(terms: Terms, *, counts: bool) -> Terms:
    """What the operator wants, as far as there are means."""
    return terms if counts else replace(terms, ips=replace(terms.ips, counts=False))


def _fast_loop(settings: Settings, port: FastPort | None) -> FastLoop | None:
    if port is None or settings.dry_run or not settings.enforce:
        return None
    return FastLoop(port, settings.ips_controller, settings.sp_s)
