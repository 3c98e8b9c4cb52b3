"""What instances demand of a host: those that its agent reports, those sent there, and new ones."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from amp_nova.admission.packing import Demand, least_refcores
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.model.topology import Topology
from amp_nova.wire.host_report import HostReport, ReportedInstance, ReportedVcpu


@dataclass(frozen=True, slots=True)
class Request:
    """What an instance to be placed books: its booked vCPUs, and the core type it requires.

    ``pcpus``: the pCPUs that Nova permits to each of the vCPUs on one host, because it pins the
    guest to NUMA cells; empty if it does not.
    """

    vcpus: tuple[VcpuBooking, ...]
    core_type: str | None = None
    pcpus: tuple[frozenset[int], ...] = ()

    def same_booking(self, other: "Request") -> bool:
        """Whether both book the same, wherever it may run."""
        return self.vcpus == other.vcpus and self.core_type == other.core_type


def request_of(booking: Booking) -> Request:
    """The request of a booking; best-effort vCPUs need no capacity and are left out."""
    return Request(tuple(v for v in booking.vcpus if v.kind != "best_effort"), booking.core_type)


def reported_request(
    vcpus: Iterable[ReportedVcpu],
    core_type: str | None,
    pcpus: tuple[frozenset[int], ...] = (),
) -> Request:
    """The request of an instance as it is on the wire."""
    booked = [v for v in vcpus if v.booked]
    return Request(
        tuple(
            VcpuBooking(v.index, "pref_core" if v.ips is None else "ips", v.refcores, v.ips)
            for v in booked
        ),
        core_type,
        pcpus,
    )


def _refcores(refcores: float | None, ips: float | None, per_ips: float | None) -> float | None:
    """A vCPU's booking in reference cores; ``None`` for best effort or unconvertible Ips.

    ``per_ips``: ``least_refcores`` of one instruction per second.
    """
    if ips is None:
        return refcores
    return None if per_ips is None else ips * per_ips


def _reported_demands(
    instance: ReportedInstance, report: HostReport, per_ips: float | None
) -> Iterator[Demand]:
    for vcpu in instance.vcpus:
        refcores = _refcores(vcpu.refcores, vcpu.ips, per_ips)
        if refcores is not None:
            yield Demand(
                (instance.resource, vcpu.index),
                refcores,
                report.allowed(vcpu),
                instance.core_type,
                vcpu.core_type,
                admitted=vcpu.pcpu is not None,
                ips=vcpu.ips,
                packed=vcpu.pcpu,
            )


def requested_demands(request: Request, report: HostReport, resource: str = "") -> list[Demand]:
    """The demands of an instance that is not on the host yet, largest first.

    vCPUs whose booking the host cannot convert, because it is not calibrated, are left out.
    """
    per_ips = least_refcores(1.0, report.topology)
    everywhere = (report.bookable,) * len(request.vcpus)
    demands = [
        Demand((resource, v.index), refcores, allowed, request.core_type, ips=v.ips)
        for v, allowed in zip(request.vcpus, request.pcpus or everywhere, strict=True)
        if (refcores := _refcores(v.refcores, v.ips, per_ips)) is not None
    ]
    return sorted(demands, key=lambda demand: -demand.refcores)


def requested_refcores(request: Request, topology: Topology) -> tuple[float, ...]:
    """What the vCPUs of ``requested_demands`` book, in reference cores, largest first."""
    per_ips = least_refcores(1.0, topology)
    booked = (_refcores(v.refcores, v.ips, per_ips) for v in request.vcpus)
    return tuple(sorted((b for b in booked if b is not None), reverse=True))


def demands_on(
    report: HostReport,
    without: str | None = None,
    pending: Mapping[str, Request] = MappingProxyType({}),
) -> Iterator[Demand]:
    """The demands that a host holds, optionally ``without`` those of one instance.

    ``pending``: instances sent to the host that its agent has not reported yet.
    """
    per_ips = least_refcores(1.0, report.topology)
    counted = set()
    for resource, request in pending.items():
        sent = requested_demands(request, report, resource)
        there = report.by_uuid.get(resource)
        reported = [] if there is None else list(_reported_demands(there, report, per_ips))
        # During a resize on the same host both sizes are possible: count the larger.
        if sum_refcores(sent) >= sum_refcores(reported):
            counted.add(resource)
            if resource != without:
                yield from sent
    for instance in report.instances:
        if instance.resource != without and instance.resource not in counted:
            yield from _reported_demands(instance, report, per_ips)


def sum_refcores(demands: Iterable[Demand]) -> float:
    """What these demands book together."""
    return sum(d.refcores for d in demands)
