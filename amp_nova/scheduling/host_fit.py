"""Host fit: whether a booking fits a host, judged by its agent's last report.

The filter tries thousands of hosts per request. For most of them ``quick_fit`` answers from the
free capacity, which is computed once per report: the agent has packed its instances, and the new
one goes beside them. Only a host whose free capacity is large enough in total but fragmented is
packed anew, by ``repacked_fit``, with the agent's own packing.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from amp_nova.admission.packing import Demand, least_refcores, need_cores, pack
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.hardware.effective_speed import bookable_refcores, kept_ratio
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import CoreType, Topology
from amp_nova.scheduling.free_places import after, best_fit, largest_first, taken_cores
from amp_nova.wire.host_report import HostReport, ReportedInstance


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


class FreeCapacity(NamedTuple):
    """Free cores of each bookable pCPU of one calibrated core type, ascending.

    ``refcores``, ``ips``: what a pCPU is worth while its siblings run; 0 if nothing or unknown.
    """

    core_type: CoreType
    free_cores: tuple[float, ...]
    refcores: float
    ips: float


@dataclass(frozen=True, slots=True)
class Headroom:
    """A host, and what its demands leave free, slowest core type first.

    ``without`` and ``pending``: as in ``demands_on``. ``complete``: every demand has a place, so
    the free capacity is available to new instances. ``refcores``: the most that can be booked on
    the host minus the least that the demands take, wherever these are packed.
    """

    report: HostReport
    without: str | None
    pending: Mapping[str, Request]
    free: tuple[FreeCapacity, ...]
    complete: bool
    refcores: float


@dataclass(frozen=True, slots=True)
class HostFit:
    """Whether a request fits: the core type of each vCPU, largest first, or why it is refused."""

    core_types: tuple[str, ...] = ()
    refused: str | None = None


def _refcores(refcores: float | None, ips: float | None, topology: Topology) -> float | None:
    """A vCPU's booking in reference cores; ``None`` for best effort or unconvertible Ips."""
    return refcores if ips is None else least_refcores(ips, topology)


def _reported_demands(instance: ReportedInstance, topology: Topology) -> list[Demand]:
    return [
        Demand(
            (instance.resource, vcpu.index),
            refcores,
            vcpu.allowed,
            instance.core_type,
            vcpu.core_type,
            admitted=vcpu.pcpu is not None,
            ips=vcpu.ips,
            packed=vcpu.pcpu,
        )
        for vcpu in instance.vcpus
        if (refcores := _refcores(vcpu.refcores, vcpu.ips, topology)) is not None
    ]


def requested_demands(request: Request, report: HostReport, resource: str = "") -> list[Demand]:
    """The demands of an instance that is not on the host yet, largest first.

    vCPUs whose booking the host cannot convert, because it is not calibrated, are left out.
    """
    everywhere = (report.bookable,) * len(request.vcpus)
    found = [
        Demand((resource, v.index), refcores, allowed, request.core_type, ips=v.ips)
        for v, allowed in zip(request.vcpus, request.pcpus or everywhere, strict=True)
        if (refcores := _refcores(v.refcores, v.ips, report.topology)) is not None
    ]
    return sorted(found, key=largest_first)


def requested_refcores(request: Request, topology: Topology) -> tuple[float, ...]:
    """What the vCPUs of ``requested_demands`` book, in reference cores, largest first."""
    booked = (_refcores(v.refcores, v.ips, topology) for v in request.vcpus)
    return tuple(sorted((b for b in booked if b is not None), reverse=True))


def demands_on(
    report: HostReport,
    without: str | None = None,
    pending: Mapping[str, Request] = MappingProxyType({}),
) -> list[Demand]:
    """The demands that a host holds, optionally ``without`` those of one instance.

    ``pending``: instances sent to the host that its agent has not reported yet.
    """
    topology = report.topology
    by_uuid = {i.resource: _reported_demands(i, topology) for i in report.instances}
    for resource, request in pending.items():
        sent = requested_demands(request, report, resource)
        # During a resize on the same host both sizes are possible: count the larger.
        if _sum_refcores(sent) >= _sum_refcores(by_uuid.get(resource, ())):
            by_uuid[resource] = sent
    return [d for resource, each in by_uuid.items() if resource != without for d in each]


def headroom_of(
    report: HostReport,
    without: str | None = None,
    pending: Mapping[str, Request] = MappingProxyType({}),
) -> Headroom:
    """The headroom of a host; arguments as for ``demands_on``."""
    topology, demands = report.topology, demands_on(report, without, pending)
    cores, complete = after(demands, report)
    free = _free_capacity(report, cores)
    everywhere = frozenset(p.id for p in topology.pcpus)
    capacity = (1.0 - report.reserve_ratio) * sum(bookable_refcores(topology, everywhere).values())
    refcores = capacity - sum(_least_refcores(d, report) for d in demands)
    return Headroom(report, without, pending, free, complete, refcores)


def _sum_refcores(demands: Sequence[Demand]) -> float:
    return sum(d.refcores for d in demands)


def _least_refcores(demand: Demand, report: HostReport) -> float:
    """The least that a vCPU takes of what may be booked: less if it gets a pCPU to itself."""
    usable, needs = 1.0 - report.reserve_ratio, [demand.refcores]
    for core_type in report.topology.core_types:
        alone = need_cores(demand, core_type)
        if alone is not None and usable < alone <= 1.0 + TOLERANCE:
            needs.append(usable * (core_type.coefficient or 0.0))
    return min(needs)


def _free_capacity(report: HostReport, free_cores: Mapping[int, float]) -> tuple[FreeCapacity, ...]:
    topology = report.topology
    return tuple(
        FreeCapacity(
            t,
            tuple(sorted(free_cores[p] for p in topology.pcpus_of(t.name) & report.bookable)),
            t.coefficient * kept,
            (t.nominal_ips or 0.0) * kept,
        )
        for t in topology.core_types
        if t.coefficient is not None
        for kept in (kept_ratio(t.smt_busy_factor, 1.0),)
    )


def _first_fit(headroom: Headroom, demands: Sequence[Demand]) -> tuple[str, ...] | None:
    """The core type of each vCPU, placed as by ``best_fit`` on any pCPU; ``None`` without place.

    It knows only how much is free, not where, which is enough unless the guest is pinned.
    """
    free, usable = headroom.free, 1.0 - headroom.report.reserve_ratio
    left = {f.core_type.name: f.free_cores for f in free}
    core_types = []
    for demand in demands:
        for core_type in (f.core_type for f in free):
            if demand.core_type not in (None, core_type.name):
                continue
            need = taken_cores(demand, core_type, usable)
            cores = left[core_type.name]
            if need is None:
                continue
            at = bisect_left(cores, need - TOLERANCE)
            if at == len(cores):
                continue
            changed = list(cores)
            insort(changed, changed.pop(at) - need)
            left[core_type.name] = tuple(changed)
            core_types.append(core_type.name)
            break
        else:
            return None
    return tuple(core_types)


def _pinned(headroom: Headroom, demands: Sequence[Demand]) -> tuple[str, ...] | None:
    """As ``_first_fit``, for demands that may not use all pCPUs."""
    report = headroom.report
    cores, _ = after(demands_on(report, headroom.without, headroom.pending), report)
    places = [best_fit(cores, demand, report) for demand in demands]
    return None if None in places else tuple(t.name for t in places if t is not None)


def quick_fit(headroom: Headroom, request: Request) -> HostFit | None:
    """The fit if it is known without packing: beside the other demands, or never.

    ``None`` if the host has to be packed anew to find out.
    """
    report, wanted = headroom.report, request.core_type
    if not request.vcpus:
        exists = any(t.name == wanted for t in report.topology.core_types)
        return HostFit() if exists else HostFit(refused=f"it has no core type '{wanted}'")
    if not headroom.free:
        return HostFit(refused="its core types have no coefficients: calibrate the host")
    types = [f.core_type for f in headroom.free if wanted in (None, f.core_type.name)]
    if not types:
        return HostFit(refused=f"it has no core type '{wanted}' that is calibrated")
    demands = requested_demands(request, report)
    if len(demands) < len(request.vcpus):
        return HostFit(refused="it is not calibrated for Ips bookings: run amp-nova calibrate")
    if headroom.complete:
        found = _pinned(headroom, demands) if request.pcpus else _first_fit(headroom, demands)
        if found is not None:
            return HostFit(found)
    needs = [need_cores(demands[0], t) for t in types]
    if all(need is None or need > 1.0 + TOLERANCE for need in needs):
        return HostFit(refused=f"a vCPU of {demands[0].amount} is more than any core gives")
    least = sum(_least_refcores(d, report) for d in demands)
    if least > headroom.refcores + TOLERANCE * len(demands):
        requested, free = _sum_refcores(demands), max(0.0, headroom.refcores)
        return HostFit(refused=f"{requested:g} reference cores requested, {free:.3f} free")
    return None


def quick_fit_of(request: Request) -> Callable[[Headroom], HostFit | None]:
    """``quick_fit`` for one request and many hosts.

    If all of its n vCPUs book the same amount, they fit if n pCPUs can hold one each. As free
    capacities are sorted, one comparison shows that.
    """
    count, booked = len(request.vcpus), {(v.refcores, v.ips) for v in request.vcpus}
    if len(booked) != 1 or request.pcpus:
        return lambda headroom: quick_fit(headroom, request)
    ((refcores, ips),) = booked
    amount, wanted = refcores or ips or 0.0, request.core_type
    fits: dict[str, HostFit] = {}

    def answer(headroom: Headroom) -> HostFit | None:
        for core_type, free, in_refcores, in_ips in headroom.free if headroom.complete else ():
            worth = in_refcores if ips is None else in_ips
            if not free or not worth or wanted not in (None, core_type.name):
                continue
            enough = amount / worth - TOLERANCE
            if free[-1] < enough <= 1.0 and core_type.smt_busy_factor is None:
                enough = min(enough, 1.0 - headroom.report.reserve_ratio - TOLERANCE)
            if free[-1] < enough:
                continue  # none of them has a place here
            if len(free) < count or free[-count] < enough:
                break
            name = core_type.name
            return fits.get(name) or fits.setdefault(name, HostFit((name,) * count))
        return quick_fit(headroom, request)

    return answer


def repacked_fit(headroom: Headroom, request: Request) -> HostFit:
    """The fit if the agent may move vCPUs to other pCPUs and core types."""
    report = headroom.report
    demands = requested_demands(request, report)
    present = demands_on(report, headroom.without, headroom.pending)
    packing = pack([*present, *demands], report.topology, report.reserve_ratio)
    if not packing.complete:
        reasons = [packing.unplaced[d.key] for d in demands if d.key in packing.unplaced]
        why = "; ".join(dict.fromkeys(reasons)) or "it is over-booked"
        if headroom.complete and not reasons:
            why = f"{_sum_refcores(demands):g} reference cores are free only in fragments"
        return HostFit(refused=why)
    types = [report.topology.type_of(packing.placed[d.key]) for d in demands]
    return HostFit(tuple(t.name for t in types if t is not None))


def fit(headroom: Headroom, request: Request) -> HostFit:
    """Whether a request fits a host."""
    return quick_fit(headroom, request) or repacked_fit(headroom, request)


def servers_that_fit(report: HostReport, request: Request, most: int) -> int:
    """How many servers with this request fit a host one after the other, at most ``most``.

    Found by bisection: a host that fits some number of servers normally fits any smaller number.
    """
    fewest = 0
    while fewest < most:
        count = (fewest + most + 1) // 2
        before = {f"new {n}": request for n in range(count - 1)}
        if fit(headroom_of(report, pending=before), request).refused is None:
            fewest = count
        else:
            most = count - 1
    return fewest
