# SPDX-License-Identifier: Apache-2.0
"""Keeps the records by which the guard and ``amp-nova release`` undo what the agent does.

A record is written before the first change of a domain, and again when a safe state changes. The
original state in it survives restarts of the agent, as long as the QEMU process, its threads and
its cgroups are the same.
"""

import contextlib
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from amp_nova.guard import record
from amp_nova.guard.record import AS_FOUND, RecordedVcpu, Tuning
from amp_nova.host.sensor import LibvirtSensor
from amp_nova.host.vcpu_threads import VcpuThread, VcpuThreads
from amp_nova.kernel.threads import GONE
from amp_nova.model import cpu_weight
from amp_nova.model.allocation import Failure, SafeStates
from amp_nova.model.bandwidth import SafeState
from amp_nova.model.observation import Domain, VcpuKey

LOG = logging.getLogger(__name__)
Identity = tuple[VcpuThread, frozenset[int]]
"""What the record of a vCPU describes: its thread, and the pCPUs that its definition allows. If
either changes, the vCPU is recorded again."""


class Records:
    """The records of this host's domains, as the agent writes them."""

    def __init__(self, state_path: Path, sensor: LibvirtSensor) -> None:
        """Load the records of earlier runs, so that the original states in them are kept."""
        self.folder = state_path / record.FOLDER
        self._sensor = sensor
        self._safe: SafeStates | None = None
        self._states: dict[str, dict[int, SafeState]] = {}
        """The safe states as last recorded, by instance and vCPU index."""
        self._domains: dict[str, record.RecordedDomain] = {}
        self._unusable: set[str] = set()
        self._identities: dict[VcpuKey, Identity] = {}
        self._problem = ""
        self._ending = False
        """Whether a process with a record outlives its domain: QEMU takes a moment to end."""
        for resource, domain in record.load_all(self.folder):
            if isinstance(domain, Exception):
                LOG.error("the record of %s cannot be used: %s", resource, domain)
                self._unusable.add(resource)
            else:  # also of a domain that has ended, so that it is removed
                self._domains[resource] = domain

    def __bool__(self) -> bool:
        """Whether there is anything to guard."""
        return bool(self._domains)

    @property
    def domains(self) -> Mapping[str, record.RecordedDomain]:
        """The recorded domains, by UUID."""
        return self._domains

    def forget(self, resource: str) -> None:
        """Remove the record of a domain that is back in its original state."""
        record.forget(self.folder, resource)
        self._domains.pop(resource, None)
        self._states.pop(resource, None)
        self._identities = {k: i for k, i in self._identities.items() if k[0] != resource}
        self._safe = None

    def keep(
        self,
        keys: Collection[VcpuKey],
        weights: Mapping[str, int],
        safe: SafeStates | None = None,
    ) -> Mapping[VcpuKey | str, Failure]:
        """Record before writing; returns the vCPUs and instances that could not be recorded.

        These must not be changed. ``keys``: the vCPUs that are about to change; ``weights``: the
        CPU weights that instances are about to get; ``safe``: the safe states of all vCPUs,
        ``None`` for those of the last call.
        """
        safe = self._safe or {} if safe is None else safe
        new = [k for k in keys if self._identities.get(k) != self._present(k)]
        same = safe is self._safe or safe == self._safe
        self._safe = safe
        if same and not (self._problem or self._ending or new or weights):
            return {}
        by_resource: dict[str, dict[int, SafeState]] = {r: {} for r in (*self._domains, *weights)}
        for key in (*safe, *new):
            by_resource.setdefault(key[0], {})[key[1]] = safe.get(key, AS_FOUND)
        self._forget()
        problem, unweighted = "", set[str]()
        for resource in by_resource.keys() - {k[0] for k in new} - weights.keys():
            if self._states.get(resource) == by_resource[resource]:
                del by_resource[resource]
        for resource, states in by_resource.items():
            try:
                self._record(resource, states, weights.get(resource))
            except (OSError, ValueError, LookupError) as exc:
                unweighted |= {resource} & weights.keys()
                why = (isinstance(exc, OSError) and exc.strerror) or exc
                problem = f"its state cannot be recorded in {self.folder}: {why}"
        if problem and problem != self._problem:
            LOG.error("%s", problem)
        self._problem = problem
        if not problem:
            return {}
        left = [k for k in new if self._identities.get(k) != self._present(k)]
        failed: dict[VcpuKey | str, Failure] = {
            k: Failure("unrecorded", f"vCPU {k[1]}: {problem}") for k in left
        }
        return failed | {r: Failure("unrecorded", problem) for r in unweighted}

    def _present(self, key: VcpuKey) -> Identity | None:
        """The thread of a vCPU, and the pCPUs that its domain's definition allows it."""
        thread, about = self._sensor.thread(key), self._sensor.about(key[0])
        if thread is None or about is None:
            return None
        return thread, about[1].get(key[1], frozenset())

    def _forget(self) -> None:
        """Drop the records of domains that ended."""
        for resource, domain in list(self._domains.items()):
            if not record.alive(domain):
                del self._domains[resource]
                with contextlib.suppress(OSError):  # nobody uses the record of a dead process
                    record.forget(self.folder, resource)
        self._ending = any(self._sensor.about(resource) is None for resource in self._domains)
        self._states = {r: s for r, s in self._states.items() if r in self._domains}
        self._identities = {k: r for k, r in self._identities.items() if k[0] in self._domains}

    def _record(self, resource: str, states: dict[int, SafeState], weight: int | None) -> None:
        threads, about = self._sensor.threads(resource), self._sensor.about(resource)
        if threads is None or about is None:  # the domain is gone, or cannot be read now
            return
        before = self._domains.get(resource)
        if before is not None and (before.process, before.started) != threads.process:
            before = None
        try:
            made = before or _domain(about[0], threads)
            if weight is not None and threads.domain is not None:
                made = replace(made, safe_weight=threads.domain.shares_of(weight))
            vcpus = self._vcpus(made, states, threads)
        except OSError as exc:
            if exc.errno in GONE:  # it has just ended: there is nothing left to change
                return
            raise
        made = replace(made, vcpus={index: vcpu for index, (vcpu, _) in vcpus.items()})
        if made != before:
            self._set_aside(resource)
            record.save(self.folder, made)
        self._domains[resource], self._states[resource] = made, states
        self._identities |= {(resource, index): present for index, (_, present) in vcpus.items()}

    def _set_aside(self, resource: str) -> None:
        """Keep an unusable record under another name: it may contain the original state."""
        if resource in self._unusable:
            with contextlib.suppress(FileNotFoundError):
                kept = record.set_aside(self.folder, resource)
                LOG.error("the unusable record of %s is kept as %s", resource, kept)
            self._unusable.remove(resource)

    def _vcpus(
        self, made: record.RecordedDomain, states: dict[int, SafeState], threads: VcpuThreads
    ) -> dict[int, tuple[RecordedVcpu, Identity]]:
        vcpus = {}
        for index in threads.by_index:
            present = self._present((made.resource, index))
            if present is not None:
                vcpu = _vcpu(present, made.vcpus.get(index), states.get(index))
                if vcpu is not None:
                    vcpus[index] = vcpu, present
        return vcpus


def _domain(domain: Domain, threads: VcpuThreads) -> record.RecordedDomain:
    """A new record, without vCPUs.

    A domain that already has one of amp-nova's CPU weights got it from an agent whose record is
    lost; originally it had the default.
    """
    process, started = threads.process
    made = record.RecordedDomain(
        domain.resource, domain.name, domain.display_name, process, started
    )
    if threads.domain is None or domain.weighted_elsewhere:
        return made
    group, shares = threads.domain, threads.domain.shares()
    if group.weight() in cpu_weight.ours(domain.vcpus):
        shares = group.shares_of(cpu_weight.DEFAULT)
    inode = os.stat(group.folder).st_ino
    return replace(made, group=group.folder, inode=inode, weight=shares)


def _vcpu(
    present: Identity, before: RecordedVcpu | None, state: SafeState | None
) -> RecordedVcpu | None:
    """The record of a vCPU; ``None`` if the agent never changed it and is not about to."""
    thread, allowed = present
    inode = os.stat(thread.group.path).st_ino
    if before is not None:
        same = (before.task, before.started, before.inode)
        if same != (thread.task, thread.started, inode):
            before = None
    if before is None:
        if state is None or state.leave:
            return None
        before = RecordedVcpu(
            thread.task,
            thread.started,
            thread.group.path,
            inode,
            thread.group.version,
            allowed,
            _original(thread, state, allowed),
        )
        thread.verify()
    elif before.allowed != allowed:  # Nova or an operator gave it other pCPUs since
        original = replace(before.original, pcpus=allowed or before.original.pcpus)
        before = replace(before, allowed=allowed, original=original)
    return replace(before, safe=AS_FOUND if state is None else state)


def _original(thread: VcpuThread, state: SafeState, allowed: frozenset[int]) -> Tuning:
    """The limit and affinity of a vCPU before the first change.

    A value that already equals the safe state was set by an agent whose record is lost, and is not
    taken for the original.
    """
    limit, pcpus = thread.group.bandwidth(), thread.pcpus()
    if limit in [x for _, x in state.limits]:
        limit = None
    if pcpus == state.pcpus and allowed:
        pcpus = allowed
    return Tuning(limit, pcpus, thread.group.read_burst())
