"""Instances that count on a host whatever its agent's last report shows.

What is pending ends when Nova says so: no task is in progress, and the agent reports the instance,
or Nova has it on another host or not at all. There is no time-out. A worker that dies between a
decision and its end leaves the end to all others, which read the same records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from amp_nova.scheduling.demands import demands_of, request_of, sum_refcores
from amp_nova.wire.host_report import VCPUS_MAX, HostReport, ReportedInstance

State = Literal["sent", "tentative", "chosen", "gone"]
"""Of a reservation. ``sent``: this worker has told the others, and not heard its own message yet;
``tentative``: it counts before all later ones, but its worker may still give it up; ``chosen``:
Nova has chosen the host, or the instance is there; ``gone``: the host reported it before and does
not any more, so Nova will probably say that it left."""


@dataclass(frozen=True, slots=True)
class Pending:
    """One instance, pending on one host since ``since_s``."""

    request: ReportedInstance
    since_s: float
    state: State = "chosen"


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
        each = pending.get(resource) or Pending(request_of(instance), now_s)
        if instance.booked and resource not in there and each.state == "chosen":
            kept[resource] = replace(each, state="gone")
    kept |= {resource: each for resource, each in pending.items() if resource not in kept}
    # The newest first, as many as a host can have besides those that it reports.
    vcpus = VCPUS_MAX - sum(len(i.vcpus) for i in after.instances)
    bounded = {}
    for resource, each in kept.items():
        vcpus -= 0 if resource in there else len(each.request.vcpus)
        if vcpus >= 0:
            bounded[resource] = each
    return bounded


def after_nova(
    node: str, report: HostReport, pending: PendingByUuid, instances: NovaInstances, began_s: float
) -> PendingByUuid:
    """What is pending on a host according to what Nova has, read since ``began_s``."""
    kept = {}
    for resource, each in pending.items():
        if resource in instances and each.since_s < began_s:
            nova, there = instances[resource], report.by_uuid.get(resource)
            if nova is None or _over(node, nova, each, there):
                continue
            # Its worker may have ended; and what is gone has not left.
            stays = each.state == "tentative" or (each.state == "gone" and not nova.busy)
            if stays and node in nova.needs:
                each = replace(each, state="chosen")
        kept[resource] = each
    for resource, nova in instances.items():
        # Nobody decided: a host given as az:host, or a decision from before the scheduler started.
        if nova is None or resource in kept or not nova.needs.get(node):
            continue
        need = larger(report, *nova.needs[node])
        if not need.vcpus:
            continue
        there = report.by_uuid.get(resource)
        if there is None or larger(report, there, need) is need:
            kept[resource] = Pending(need, began_s)
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
    return bool(nova.needs[node]) or request_of(there) == request_of(pending.request)


def larger(report: HostReport, *sizes: ReportedInstance) -> ReportedInstance:
    """The size of an instance that books most on a host; the first one of several."""
    return max(sizes, key=lambda size: sum_refcores(demands_of(size, report)))
