# SPDX-License-Identifier: Apache-2.0
"""Brings a recorded domain into its safe state, or back to its original state.

Before and after each write, its target is verified. A target that is gone or has been replaced is
left alone.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from amp_nova.exceptions import ActuationFailed
from amp_nova.guard.record import RecordedDomain, RecordedVcpu, Tuning
from amp_nova.kernel.cgroups import DomainGroup, VcpuGroup, opened
from amp_nova.kernel.threads import GONE, Thread
from amp_nova.model.bandwidth import Bandwidth, Step, described

ATTEMPTS = 4
"""How often a vCPU whose pCPUs change meanwhile is restored; the guard's next poll goes on."""
Target = Callable[[RecordedVcpu, Tuning], Tuning]
"""Decides what shall be in force for a vCPU, from its record and its present state."""


def original(vcpu: RecordedVcpu, _now: Tuning) -> Tuning:
    """What was in force before the agent's first change."""
    return vcpu.original


def safe(vcpu: RecordedVcpu, now: Tuning) -> Tuning:
    """The safe state of a vCPU.

    A booked vCPU stays on its present core type and gets the limit for that type. If its affinity
    is not within one core type, because a move was interrupted or somebody changed it, it gets the
    recorded affinity.
    """
    state = vcpu.safe
    if state.leave:
        return now
    if not state.limits:
        if state.pcpus is None:
            # The agent keeps to what libvirt allows: somebody else gave it other pCPUs.
            others = now.pcpus - vcpu.allowed - vcpu.original.pcpus
            pcpus = now.pcpus if others else vcpu.original.pcpus
        else:
            pcpus = now.pcpus if now.pcpus and now.pcpus <= state.pcpus else state.pcpus
        return Tuning(vcpu.original.bandwidth, pcpus, vcpu.original.burst_us)
    for affinity in (now.pcpus, state.pcpus):
        for there, limit in state.limits:
            if affinity and affinity <= there:
                return Tuning(limit, affinity)
    return now


def steps(now: Tuning, target: Tuning) -> tuple[Step, ...]:
    """The writes from one tuning to another, ordered so that none gives more than both do."""
    writes: list[Step] = []
    if now.pcpus != target.pcpus and target.pcpus:
        writes.append(Step(pcpus=target.pcpus))
    unlimited = now.bandwidth is None and target.bandwidth is None
    same = (now.bandwidth, now.burst_us) == (target.bandwidth, target.burst_us)
    if not (same or unlimited):
        lowered = _cores(target.bandwidth) <= _cores(now.bandwidth)
        writes.insert(0 if lowered else len(writes), Step(bandwidth=target.bandwidth))
    return tuple(writes)


def _cores(limit: Bandwidth | None) -> float:
    return float("inf") if limit is None else limit.cores


@dataclass(slots=True)
class Restoration:
    """A line for each change (in a dry run, each planned one), a sentence for each leftover."""

    changes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    vcpus: bool = False
    """Whether a vCPU changes, and not only the weight."""


def restore(
    domain: RecordedDomain,
    target_of: Target,
    *,
    dry_run: bool = False,
    may: Callable[[], bool] = lambda: True,
) -> Restoration:
    """Restore a domain; a target that is gone or has been replaced is left alone.

    ``may``: called right before each write; nothing more is written once it returns false.
    """
    result = Restoration()
    weight = domain.weight if target_of is original else domain.safe_weight
    writes = None if dry_run else may
    _attempt(domain.name, result, partial(_weight, domain, weight, result, writes))
    for index, vcpu in sorted(domain.vcpus.items()):
        who = f"{domain.name} vCPU {index}"
        _attempt(who, result, partial(_vcpu, who, vcpu, target_of, result, writes))
    return result


def _attempt(who: str, result: Restoration, act: Callable[[], None]) -> None:
    try:
        act()
    except ActuationFailed as exc:
        result.left.append(f"{who}: {exc}")
    except OSError as exc:
        if exc.errno not in GONE:
            result.left.append(f"{who} cannot be changed: {exc.strerror}")
    except ValueError as exc:
        result.left.append(f"{who} cannot be read: {exc}")


def _weight(
    domain: RecordedDomain, weight: int, result: Restoration, may: Callable[[], bool] | None
) -> None:
    """Set the weight of a domain; ``may``: as in ``_vcpu``."""
    if not (weight and domain.group):
        return
    with (
        opened(domain.group, domain.inode) as folder,
        contextlib.closing(DomainGroup(folder)) as group,
    ):
        if group.shares() == weight or not (may is None or may()):
            return
        if may is not None:
            group.set_shares(weight)
    result.changes.append(f"{domain.name}: weight {weight}")


def _vcpu(
    who: str,
    vcpu: RecordedVcpu,
    target_of: Target,
    result: Restoration,
    may: Callable[[], bool] | None,
) -> None:
    """Write until the target for the pCPUs in force is in force.

    Somebody may give the vCPU other pCPUs between the reading and the write. ``may``: ``None`` in a
    dry run.
    """
    before: tuple[Step, ...] = ()
    with (
        opened(vcpu.group, vcpu.inode) as folder,
        contextlib.closing(VcpuGroup(folder, vcpu.version)) as group,
        contextlib.closing(Thread(vcpu.task, vcpu.started)) as thread,
    ):
        thread.verify()
        for _ in range(ATTEMPTS):
            now = Tuning(group.bandwidth(), thread.pcpus(), group.read_burst())
            target = target_of(vcpu, now)
            todo = steps(now, target)
            if not todo or todo == before:  # its cpuset may permit no more
                return
            before, result.vcpus = todo, True
            change = f"{who}: {', '.join(map(described, todo))}"
            if target.burst_us and any(step.pcpus is None for step in todo):
                change += f", burst {target.burst_us} us"
            if may is not None:
                for step in todo:
                    if not may():
                        return
                    _take(thread, group, step, target.burst_us)
            result.changes.append(change)
            if may is None:
                return


def _take(thread: Thread, group: VcpuGroup, step: Step, burst_us: int) -> None:
    """Write one step and read it back."""
    thread.verify()
    if step.pcpus is None:
        group.set_bandwidth(step.bandwidth, burst_us)
    else:
        thread.set_affinity(step.pcpus)
        if not (now := thread.pcpus()) <= step.pcpus:
            raise ActuationFailed(f"the kernel reports an affinity to pCPUs {sorted(now)}")
    thread.verify()
