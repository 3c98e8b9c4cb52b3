# SPDX-License-Identifier: Apache-2.0
"""What instances demand of a host: those that its agent reports, those sent there, and new ones.

All have the form of the report. One that is not on the host yet has booked vCPUs without a place,
and may use all bookable pCPUs unless Nova pins it to NUMA cells.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from amp_nova.admission.packing import Demand, least_refcores
from amp_nova.flavor.extra_specs import Booking
from amp_nova.wire.host_report import HostReport, ReportedInstance, ReportedVcpu, pcpus_of


def request_of(booking: Booking | ReportedInstance) -> ReportedInstance:
    """What an instance books, wherever it is: without its best-effort vCPUs."""
    vcpus = (ReportedVcpu(v.index, v.refcores, v.ips) for v in booking.vcpus)
    return ReportedInstance("", tuple(v for v in vcpus if v.booked), booking.core_type)


def demands_of(instance: ReportedInstance, report: HostReport, resource: str = "") -> list[Demand]:
    """The demands of one instance, largest first.

    vCPUs whose booking the host cannot convert, because it is not calibrated, are left out.
    """
    per_ips = least_refcores(1.0, report.topology)
    demands = []
    for vcpu in instance.vcpus:
        refcores = vcpu.refcores
        if vcpu.ips is not None:
            refcores = None if per_ips is None else vcpu.ips * per_ips
        if refcores is not None:
            text = vcpu.cpus_allowed_list
            demand = Demand(
                (resource, vcpu.index),
                refcores,
                pcpus_of(text) if text else report.bookable,
                instance.core_type,
                vcpu.core_type,
                admitted=vcpu.pcpu is not None,
                ips=vcpu.ips,
                packed=vcpu.pcpu,
            )
            demands.append(demand)
    return sorted(demands, key=lambda demand: -demand.refcores)


def demands_on(
    report: HostReport,
    without: str | None = None,
    pending: Mapping[str, Sequence[ReportedInstance]] = MappingProxyType({}),
) -> Iterator[Demand]:
    """The demands that a host holds, optionally ``without`` those of one instance.

    ``pending``: what instances need there that Nova is working on. If several sizes are possible,
    as during a resize on the same host, the largest counts.
    """
    there = report.by_uuid
    for resource in chain(there, (r for r in pending if r not in there)):
        if resource != without:
            found = [there[resource]] if resource in there else []
            found += pending.get(resource, ())
            yield from max((demands_of(s, report, resource) for s in found), key=sum_refcores)


def sum_refcores(demands: Iterable[Demand]) -> float:
    """What these demands book together."""
    return sum(d.refcores for d in demands)
