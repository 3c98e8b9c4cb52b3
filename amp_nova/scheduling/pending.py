# SPDX-License-Identifier: Apache-2.0
"""Instances that count on a host whatever its agent's last report shows.

What is pending ends when Nova says so: no task is in progress, and the agent reports the instance,
or Nova has it on another host or not at all. There is no time-out. A worker that dies between a
decision and its end leaves the end to all others, which read the same records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from amp_nova.scheduling.demands import request_of
from amp_nova.wire.host_report import VCPUS_MAX, HostReport, ReportedInstance

State = Literal["sent", "tentative", "chosen", "gone"]
"""Of a reservation. ``sent``: this worker has told the others, and not heard its own message yet;
``tentative``: it counts before all later ones, but its worker may still give it up; ``chosen``:
Nova has chosen the host, or the instance is there; ``gone``: the host reported it before and does
not any more, so Nova will probably say that it left."""


@dataclass(frozen=True, slots=True)
class Pending:
    """One instance, pending on one host since ``since_s``.

    ``sizes``: what it may book there; ``settled``: as in ``NovaInstance``.
    """

    sizes: tuple[ReportedInstance, ...]
    since_s: float
    state: State = "chosen"
    settled: bool = False


@dataclass(frozen=True, slots=True)
class NovaInstance:
    """An instance in Nova's records.

    ``needs``: what it needs on each host: the sizes before and after a resize if both are there,
    none if its flavor was not read.
    ``busy``: Nova is working on it, or waits for a resize to be confirmed or reverted. ``settled``:
    nothing changes until somebody asks for it.
    """

    needs: Mapping[str, Sequence[ReportedInstance]] = field(default_factory=dict)
    busy: bool = False
    settled: bool = False


PendingByUuid = Mapping[str, Pending]
NovaInstances = Mapping[str, NovaInstance | None]
"""What Nova has, by UUID; ``None`` if it has no such instance. Missing if a cell is silent."""


def after_report(
    before: HostReport, after: HostReport, pending: PendingByUuid, now_s: float
) -> PendingByUuid:
    """What is pending on a host after its next report.

    An instance that is gone keeps its capacity until Nova says that it left: a hard reboot
    undefines its domain for a moment.
    """
    there = after.by_uuid
    kept = {}
    for instance in before.instances:
        resource = instance.resource
        each = pending.get(resource) or Pending((request_of(instance),), now_s)
        if instance.booked and resource not in there and each.state == "chosen":
            kept[resource] = replace(each, state="gone")
    kept |= {resource: each for resource, each in pending.items() if resource not in kept}
    # The newest first, as many as a host can have besides those that it reports.
    vcpus = VCPUS_MAX - sum(len(i.vcpus) for i in after.instances)
    bounded = {}
    for resource, each in kept.items():
        vcpus -= 0 if resource in there else max(len(size.vcpus) for size in each.sizes)
        if vcpus >= 0:
            bounded[resource] = each
    return bounded


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
            each = replace(each, settled=nova.settled)
            # Its worker may have ended; and what is gone has not left.
            stays = each.state == "tentative" or (each.state == "gone" and not nova.busy)
            if stays and node in nova.needs:
                each = replace(each, state="chosen")
        kept[resource] = each
    for resource, nova in instances.items():
        # Nobody decided: a host given as az:host, or a decision from before the scheduler started.
        needs = nova.needs.get(node, ()) if nova is not None and resource not in kept else ()
        there = reported.get(resource)
        sizes = tuple(s for s in needs if s.vcpus and (there is None or _more(s, there)))
        if nova is not None and sizes:
            kept[resource] = Pending(sizes, began_s, settled=nova.settled)
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


def _more(size: ReportedInstance, there: ReportedInstance) -> bool:
    """Whether a size books more than another, in reference cores or in instructions per second."""
    (cores, ips), (other_cores, other_ips) = (
        (sum(v.refcores or 0.0 for v in s.vcpus), sum(v.ips or 0.0 for v in s.vcpus))
        for s in (size, there)
    )
    return cores > other_cores or ips > other_ips
