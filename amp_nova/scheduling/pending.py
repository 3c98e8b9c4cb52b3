# SPDX-License-Identifier: Apache-2.0
"""Instances that count on a host whatever its agent's last report shows.

What is pending ends when Nova says so: no task is in progress, and the agent reports the instance,
or Nova has it on another host or not at all. There is no time-out. A worker that dies between a
decision and its end leaves the end to all others, which read the same records.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from amp_nova.scheduling.demands import request_of
from amp_nova.wire.host_report import VCPUS_MAX, HostReport, ReportedInstance


@dataclass(frozen=True, slots=True)
class Pending:
    """One instance, pending on one host since ``since_s``.

    ``sizes``: what it may book there. ``chosen``: Nova has chosen the host, or the instance is
    there; until then, and once the host does not report it any more, it may give its capacity up.
    """

    sizes: tuple[ReportedInstance, ...]
    since_s: float
    chosen: bool = True


@dataclass(frozen=True, slots=True)
class NovaInstance:
    """An instance in Nova's records.

    ``needs``: what it needs on each host: the sizes before and after a resize if both are there,
    none if its flavor was not read.
    ``busy``: Nova is working on it, or waits for a resize to be confirmed or reverted.
    """

    needs: Mapping[str, Sequence[ReportedInstance]] = field(default_factory=dict)
    busy: bool = False


PendingByUuid = Mapping[str, Pending]
NovaInstances = Mapping[str, NovaInstance | None]
"""What Nova has, by UUID; ``None`` if it has no such instance. Missing if a cell is silent."""


def after_report(before: HostReport, after: HostReport, pending: PendingByUuid) -> PendingByUuid:
    """What is pending on a host after its next report.

    An instance that is gone keeps its capacity until Nova says that it left: a hard reboot
    undefines its domain for a moment.
    """
    there, kept = after.by_uuid, dict(pending)
    for instance in before.instances:
        resource = instance.resource
        each = pending.get(resource) or Pending((request_of(instance),), -math.inf)
        if instance.booked and resource not in there and each.chosen:
            kept[resource] = replace(each, chosen=False)
    vcpus = sum(len(size.vcpus) for each in kept.values() for size in each.sizes)
    return kept if vcpus <= VCPUS_MAX else pending  # no host has so many


def after_nova(
    node: str,
    reported: Mapping[str, ReportedInstance],
    pending: PendingByUuid,
    instances: NovaInstances,
    began_s: float,
) -> PendingByUuid:
    """What is pending on a host according to what Nova has, read since ``began_s``.

    ``reported``: the instances in the host's report.
    """
    kept = {}
    for resource, each in pending.items():
        if resource in instances and each.since_s < began_s:
            nova = instances[resource]
            if nova is None or _over(node, nova, each, reported.get(resource)):
                continue
            if node in nova.needs and not nova.busy:
                # Its worker may have ended; and what is gone has not left.
                each = replace(each, chosen=True)
        kept[resource] = each
    for resource, nova in instances.items():
        # Nobody decided: a host given as az:host, or a decision from before the scheduler started.
        needs = nova.needs.get(node, ()) if nova is not None and resource not in kept else ()
        there = reported.get(resource)
        now = request_of(there) if there is not None else None
        if sizes := tuple(s for s in needs if s.vcpus and s != now):
            kept[resource] = Pending(sizes, began_s)
    return kept


def _over(node: str, nova: NovaInstance, pending: Pending, there: ReportedInstance | None) -> bool:
    """Whether a reservation has ended; ``there``: the instance in the host's report."""
    if nova.busy:
        return False
    if node not in nova.needs:
        return True
    if there is None:
        return False
    # If it was resized on this host, only its flavor says which of the two sizes it has now.
    now = request_of(there)
    return bool(nova.needs[node]) or all(now == size for size in pending.sizes)
