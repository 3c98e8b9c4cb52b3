# SPDX-License-Identifier: Apache-2.0
"""Changes the host: CPU bandwidth limits, affinities, and CPU weights of guests' vCPUs.

The agent writes them nowhere else. Without an agent the guard does; ``host.io`` moves I/O threads.

Every write takes the cycle lock, respects pauses, checks immediately before that the agent still
has its lease, verifies before and after that its target is the same thread of the same process, and
is read back. It goes through a back end: ``CgroupBackend`` or libvirt (``libvirt.backend``).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from amp_nova.exceptions import ActuationFailed, ConfigInvalid, HypervisorUnavailable
from amp_nova.host.records import Records
from amp_nova.host.sensor import LibvirtSensor
from amp_nova.host.vcpu_threads import VcpuThread, VcpuThreads
from amp_nova.kernel.cgroups import READ_ONLY, at_period_start
from amp_nova.kernel.threads import GONE
from amp_nova.model import cpu_weight
from amp_nova.model.allocation import (
    LEASE,
    LOCKED,
    Change,
    Changes,
    Failure,
    Outcome,
    SafeStates,
)
from amp_nova.model.bandwidth import Bandwidth, Step, described
from amp_nova.model.observation import DomainReading, VcpuKey

Lock = Callable[[float], AbstractContextManager[None]]
"""Takes the cycle lock; the argument is the longest wait in seconds. After that, ``Locked`` names
the process that holds the lock."""
LOCK_WAIT_S = 1.0
"""How long a cycle waits for a process that holds the lock before it drops its changes."""


@dataclass(frozen=True, slots=True)
class WriteConditions:
    """What every write respects: the instances that are paused now, the cycle lock, and the lease.

    ``records`` saves the original state before the first change; ``lost``: why the lease is lost,
    empty as long as it is not. By default nothing is paused, locked, recorded or lost.
    """

    paused: Callable[[], Mapping[str, str]] = dict
    lock: Lock = lambda _wait_s: nullcontext()
    records: Records | None = None
    lost: Callable[[], str] = str


class Backend(Protocol):
    """Carries out the writes of limits, affinities and CPU weights.

    ``in_definition``: its writes also change libvirt's live definition of the domain.
    """

    in_definition: bool

    def take(self, key: VcpuKey, thread: VcpuThread, step: Step) -> None:
        """Write one step; a limit is read back.

        Raises ``OSError``, ``ActuationFailed`` or ``HypervisorUnavailable``.
        """
        ...

    def set_weight(self, resource: str, threads: VcpuThreads, weight: int) -> None:
        """Set a domain's CPU weight and read it back; raises the same errors."""
        ...


class CgroupBackend:
    """The default back end: a vCPU's own CPU cgroup, and the affinity of its thread.

    Nothing enters libvirt's definition, so nothing travels with a live migration to a host where it
    would be wrong. A write takes a few microseconds.
    """

    in_definition = False

    def take(self, _key: VcpuKey, thread: VcpuThread, step: Step) -> None:
        """Write one step; ``ActuationFailed`` if the kernel then reports another limit."""
        if step.pcpus is not None:
            thread.set_affinity(step.pcpus)
        else:
            thread.group.set_bandwidth(step.bandwidth)

    def set_weight(self, _resource: str, threads: VcpuThreads, weight: int) -> None:
        """Set a domain's CPU weight; ``ActuationFailed`` if the kernel then reports another."""
        if threads.domain is not None:
            threads.domain.set_shares(threads.domain.shares_of(weight))


class Writer:
    """Writes what was decided to the threads that a sensor found."""

    def __init__(
        self,
        sensor: LibvirtSensor,
        conditions: WriteConditions | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._sensor = sensor
        self._conditions = conditions or WriteConditions()
        self._backend: Backend = backend or CgroupBackend()

    @property
    def in_definition(self) -> bool:
        """Whether writes also change libvirt's definition, and have to be undone there."""
        return self._backend.in_definition

    @property
    def records(self) -> Records:
        """The records of the states before the first change; an agent keeps them."""
        assert self._conditions.records is not None
        return self._conditions.records

    def apply(self, changes: Changes) -> Outcome:
        """Make each change independently of the others; a vCPU that is gone is not a failure.

        A limit that replaces another one is written when a bandwidth period begins, which may take
        one period of at most 0.1 s.
        """
        if not changes:
            self._recorded((), {}, changes.safe)
            return Outcome()
        return self._locked(changes, LOCK_WAIT_S)

    def throttle(self, limits: Mapping[VcpuKey, Bandwidth | None]) -> Mapping[VcpuKey, Failure]:
        """Write limits at once; returns the failures, which the caller retries.

        If another process has the lock, all vCPUs fail.
        """
        steps = {key: (Step(bandwidth=limit),) for key, limit in limits.items()}
        changes = Changes(tuple(Change(key, step) for key, step in steps.items()))
        return self._locked(changes, 0.0, at_once=True).failures

    def _locked(self, changes: Changes, wait_s: float, *, at_once: bool = False) -> Outcome:
        """``at_once``: write limits in the middle of a period, and keep the safe states."""
        try:
            with self._conditions.lock(wait_s):
                return self._apply(changes, at_once)
        except ConfigInvalid as exc:
            failure = Failure(LOCKED, str(exc))
            failures = dict.fromkeys((c.key for c in changes.vcpus), failure)
            return Outcome(failures, dict.fromkeys(changes.cpu_weights, failure))

    def _apply(self, changes: Changes, at_once: bool) -> Outcome:
        paused = self._conditions.paused()
        failures = {
            c.key: Failure("paused", paused[c.key[0]]) for c in changes.vcpus if c.key[0] in paused
        }
        unset = {r: Failure("paused", paused[r]) for r in changes.cpu_weights if r in paused}
        vcpus = [c for c in changes.vcpus if c.key not in failures]
        weights = {r: w for r, w in changes.cpu_weights.items() if r not in unset}
        keys, safe = [c.key for c in vcpus], None if at_once else changes.safe
        unrecorded = self._recorded(keys, weights, safe)
        failures |= {key: unrecorded[key] for key in keys if key in unrecorded}
        # Weights first: until they are set, a new limit gives a booking no precedence.
        for resource, weight in weights.items():
            failure = unrecorded.get(resource) or self._set_weight(resource, weight)
            if failure is not None:
                unset[resource] = failure
        failures |= self._write([c for c in vcpus if c.key not in failures], at_once)
        return Outcome(failures, unset)

    def _recorded(
        self,
        keys: Collection[VcpuKey],
        weights: Mapping[str, int],
        safe: SafeStates | None,
    ) -> Mapping[VcpuKey | str, Failure]:
        records = self._conditions.records
        return {} if records is None else records.keep(keys, weights, safe)

    def undo(self, reading: DomainReading, *, dry_run: bool = False) -> tuple[list[str], list[str]]:
        """Undo every change to a domain: a line for each, and a sentence for each that failed.

        The caller holds the cycle lock. ``dry_run``: only say what would be undone.
        """
        resource, name = reading.domain.resource, reading.domain.name
        changes, left = list[str](), [t for t in (reading.domain.problem, reading.failure) if t]
        for vcpu in reading.vcpus:
            steps = []
            if vcpu.pcpus != vcpu.allowed and vcpu.allowed:
                steps.append(Step(pcpus=vcpu.allowed))
            if vcpu.bandwidth is not None and not reading.domain.limited_elsewhere:
                steps.append(Step(bandwidth=None))
            if steps:
                changes.append(f"{name} vCPU {vcpu.index}: {', '.join(map(described, steps))}")
            for step in () if dry_run else steps:
                if (failure := self._take((resource, vcpu.index), (step,))) is not None:
                    left.append(failure.message)
        if reading.cpu_weight in cpu_weight.ours(reading.domain.vcpus):
            changes.append(f"{name}: CPU weight {cpu_weight.DEFAULT}")
            failure = None if dry_run else self._set_weight(resource, cpu_weight.DEFAULT)
            left += [failure.message] if failure else []
        return changes, [] if dry_run else [f"{name}: {text}" for text in left]

    def _write(self, changes: Sequence[Change], at_once: bool) -> dict[VcpuKey, Failure]:
        failures: dict[VcpuKey, Failure] = {}
        later: dict[VcpuKey, tuple[Step, ...]] = {}
        for change in changes:
            now, timed = (change.steps, ()) if at_once else self._timed(change)
            failure = self._take(change.key, now)
            if failure is not None:
                failures[change.key] = failure
            elif timed:
                later[change.key] = timed

        def act(key: VcpuKey) -> None:
            if (failure := self._take(key, later[key])) is not None:
                failures[key] = failure

        groups = {key: t.group for key in later if (t := self._sensor.thread(key)) is not None}
        at_period_start(groups, act)
        return failures

    def _timed(self, change: Change) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """The steps to take at once, and those to take as a period begins.

        The second start with the first step that replaces a limit.
        """
        thread = self._sensor.thread(change.key)
        try:
            limited = thread is not None and thread.group.bandwidth() is not None
        except (OSError, ValueError):  # gone: taking the steps finds that out
            limited = False
        for i, step in enumerate(change.steps):
            if limited and step.bandwidth is not None:
                return change.steps[:i], change.steps[i:]
        return change.steps, ()

    def _take(self, key: VcpuKey, steps: Sequence[Step]) -> Failure | None:
        thread = self._sensor.thread(key)
        if thread is None:
            return None
        try:
            for step in steps:
                thread.verify()
                thread.written()
                if not _in_force(thread, step):
                    if (failure := self._fenced()) is not None:
                        return failure
                    self._backend.take(key, thread, step)
                _check(thread, step)
                thread.verify()
        except (ActuationFailed, HypervisorUnavailable, OSError, ValueError) as exc:
            if _gone(exc):
                if (threads := self._sensor.threads(key[0])) is not None:
                    threads.drop(key[1])
                return None
            return _failure(f"vCPU {key[1]}", exc)
        return None

    def _fenced(self) -> Failure | None:
        """Called right before each write: the failure of all writes once the lease is lost."""
        if not (lost := self._conditions.lost()):
            return None
        return Failure(LEASE, f"{lost}: until the agent takes a new one, only the guard writes")

    def _set_weight(self, resource: str, weight: int) -> Failure | None:
        threads = self._sensor.threads(resource)
        if threads is None or threads.domain is None:
            return None
        try:
            if (failure := self._fenced()) is not None:
                return failure
            self._backend.set_weight(resource, threads, weight)
        except (ActuationFailed, HypervisorUnavailable, OSError, ValueError) as exc:
            return None if _gone(exc) else _failure("its CPU weight", exc)
        return None


def _gone(exc: Exception) -> bool:
    """Whether the target of a write has ended."""
    return isinstance(exc, OSError) and exc.errno in GONE


def _failure(target: str, exc: Exception) -> Failure:
    if isinstance(exc, ActuationFailed):
        return Failure("refused", f"{target}: {exc}")
    if isinstance(exc, OSError):
        reason = "read_only" if exc.errno in READ_ONLY else "refused"
        return Failure(reason, f"{target} cannot be changed: {exc.strerror}")
    reason = "refused" if isinstance(exc, ValueError) else "libvirt"
    return Failure(reason, f"{target} cannot be changed: {exc}")


def _in_force(thread: VcpuThread, step: Step) -> bool:
    """Whether the step's limit is already in force, without a burst; an affinity never counts."""
    if step.pcpus is not None:
        return False
    burst = step.bandwidth is not None and thread.group.read_burst()
    return not burst and thread.group.bandwidth() == step.bandwidth


def _check(thread: VcpuThread, step: Step) -> None:
    """Raise ``ActuationFailed`` if the affinity written is not in force; backends check limits."""
    if step.pcpus is not None and thread.pcpus() != step.pcpus:
        raise ActuationFailed(
            f"the kernel keeps it on pCPUs {sorted(thread.pcpus())} instead of "
            f"{sorted(step.pcpus)}: its cpuset does not contain them all"
        )
