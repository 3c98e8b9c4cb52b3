"""Instances that count on a host although its agent's last report does not show them.

What is pending ends when Nova says so: the agent reports the instance, or Nova's database has it on
another host, or not at all, and no task is in progress. There is no time-out. A worker that dies
between a decision and its end leaves the end to all others, which read the same database.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from amp_nova.scheduling.demands import booked_by
from amp_nova.wire.host_report import VCPUS_MAX, HostReport, ReportedInstance

Kind = Literal["tentative", "chosen", "alternate", "left"]
Reserved = Literal["tentative", "alternate"]


@dataclass(frozen=True, slots=True)
class Pending:
    """One instance, pending on one host since ``since_s``.

    ``kind``: ``tentative`` while its claim is in progress; ``chosen`` from then on; ``alternate``
    if Nova may retry its build there; ``left`` if it was reported before, and keeps that booking
    because Nova still has it there: it is rebooted, or a resize on the same host may be reverted.
    ``ordered`` is false for a worker's own tentative one until the bus has delivered it.
    """

    request: ReportedInstance
    since_s: float
    kind: Kind = "chosen"
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class NovaInstance:
    """An instance in Nova's database: its host, and whether Nova is working on it.

    ``busy`` is also true for a resize to be confirmed or reverted. ``request``: what it books.
    """

    node: str | None
    busy: bool
    request: ReportedInstance | None = None


PendingByUuid = Mapping[str, Pending]
NovaInstances = Mapping[str, NovaInstance | None]
"""What Nova has, by UUID; ``None`` if it has no such instance. Missing if a cell is silent."""


def after_report(
    before: HostReport, after: HostReport, pending: PendingByUuid, now_s: float
) -> PendingByUuid:
    """What is pending on a host after its next report."""
    kept = dict(_left(before, after, pending, now_s))
    for resource, each in pending.items():
        if resource not in kept and not _shown(after, resource, each):
            kept[resource] = each
    return _bounded(kept, after)


def _bounded(pending: PendingByUuid, report: HostReport) -> PendingByUuid:
    """Drop the oldest instances that left if the host cannot have them besides the reported.

    The newest come first.
    """
    vcpus = VCPUS_MAX - sum(len(i.vcpus) for i in report.instances)
    kept = {}
    for resource, each in pending.items():
        vcpus -= len(each.request.vcpus) if each.kind == "left" else 0
        if vcpus >= 0 or each.kind != "left":
            kept[resource] = each
    return kept


def _left(
    before: HostReport, after: HostReport, pending: PendingByUuid, now_s: float
) -> Iterator[tuple[str, Pending]]:
    """Instances of the last report that are gone, or whose booking the scheduler has changed."""
    for instance in before.instances if before.instances is not after.instances else ():
        resource, now = instance.resource, after.by_uuid.get(instance.resource)
        if not instance.booked or now is instance:
            continue
        was = booked_by(instance)
        sent = pending.get(resource)
        if now is None:
            left = sent is None
        else:
            resized = was != booked_by(now)
            left = resized and sent is not None and _shown(after, resource, sent)
        if left:
            yield resource, Pending(was, now_s, "left")


def _shown(report: HostReport, resource: str, pending: Pending) -> bool:
    """Whether a report shows a pending instance with the booking that it was sent with."""
    instance = report.by_uuid.get(resource)
    return instance is not None and booked_by(pending.request) == booked_by(instance)


def after_nova(
    node: str, report: HostReport, pending: PendingByUuid, instances: NovaInstances, began_s: float
) -> PendingByUuid:
    """What is pending on a host according to what Nova's database has, read since ``began_s``."""
    kept = {}
    for resource, each in pending.items():
        if resource in instances and each.since_s < began_s:
            nova = instances[resource]
            if nova is None or not (nova.busy or nova.node == node):
                continue
            if not nova.busy and resource in report.by_uuid:
                continue
        kept[resource] = each
    for resource, nova in instances.items():
        # Nobody decided: a host given as az:host, or a decision from before the scheduler started.
        if nova is None or not nova.busy or nova.node != node or nova.request is None:
            continue
        if resource not in pending and resource not in report.by_uuid:
            kept[resource] = Pending(nova.request, began_s)
    return kept
