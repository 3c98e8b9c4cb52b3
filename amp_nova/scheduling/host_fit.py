# SPDX-License-Identifier: Apache-2.0
"""Host fit: whether a booking fits a host, judged by its agent's last report.

The filter tries thousands of hosts per request. For most of them ``quick_fit`` answers from the
free capacity, which is computed once per report: the agent has packed its instances, and the new
one goes beside them. Only a host whose free capacity is large enough in total but fragmented is
packed anew, by ``repacked_fit``, with the agent's own packing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from amp_nova.admission import free_cores
from amp_nova.admission.free_cores import FreeCores
from amp_nova.admission.packing import need_cores, pack, place, replay
from amp_nova.hardware.effective_speed import bookable_refcores, kept_ratio
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import CoreType
from amp_nova.scheduling.demands import demands_of, demands_on, sum_refcores
from amp_nova.wire.host_report import HostReport, ReportedInstance

SEARCHED_MAX = 1 << 14
"""Most booked vCPUs times pCPUs of a host for which places are sought, such as 256 on 64 pCPUs: no
host may slow requests down."""


class TypeCapacity(NamedTuple):
    """Free cores of each bookable pCPU of one calibrated core type, ascending.

    ``refcores``, ``ips``: what a pCPU is worth while its siblings run; 0 if nothing or unknown.
    """

    core_type: CoreType
    free_cores: tuple[float, ...]
    refcores: float
    ips: float


@dataclass(frozen=True, slots=True)
class HostCapacity:
    """A host, and what its demands leave free, slowest core type first.

    ``without`` and ``pending``: as in ``demands_on``. ``complete``: every demand has a place, so
    what is ``left`` is available to new instances. ``refcores``: the most that can be booked on
    the host minus the least that the demands take, wherever these are packed.
    """

    report: HostReport
    without: str | None
    pending: Mapping[str, Sequence[ReportedInstance]]
    left: FreeCores
    free: tuple[TypeCapacity, ...]
    complete: bool
    refcores: float


class HostFit(Struct, frozen=True):
    """Whether a request fits: the core type of each vCPU, largest first, or why it is refused."""

    core_types: tuple[str, ...] = ()
    refused: str | None = None


def capacity_of(
    report: HostReport,
    without: str | None = None,
    pending: Mapping[str, Sequence[ReportedInstance]] = MappingProxyType({}),
) -> HostCapacity:
    """The capacity of a host; arguments as for ``demands_on``."""
    topology = report.topology
    everywhere = frozenset(p.id for p in topology.pcpus)
    bookable = sum(bookable_refcores(topology, everywhere).values())
    # Iterated twice, because a list of them would take more memory than all that is kept.
    refcores_of = (d.refcores for d in demands_on(report, without, pending))
    booked = sum(map(_least_refcores(report), refcores_of))
    demands = demands_on(report, without, pending)
    empty = free_cores.empty(topology, report.reserve_ratio)
    packing, unplaced = replay(demands, topology, empty, SEARCHED_MAX // max(1, len(everywhere)))
    complete = len(unplaced) * len(everywhere) <= SEARCHED_MAX
    if complete:
        packing = place(unplaced, topology, packing.free)
        complete = packing.complete
    refcores = (1.0 - report.reserve_ratio) * bookable - booked
    free = _of_each_type(report, packing.free_cores)
    return HostCapacity(report, without, pending, packing.free, free, complete, refcores)


def _least_refcores(report: HostReport) -> Callable[[float], float]:
    """The least that a booking takes of what may be booked on a host: less if alone on a pCPU."""
    usable = 1.0 - report.reserve_ratio
    shared = usable * min((t.coefficient or 0.0 for t in report.topology.core_types), default=0.0)
    return lambda refcores: refcores if refcores <= shared else usable * refcores


def _of_each_type(report: HostReport, free_cores: Mapping[int, float]) -> tuple[TypeCapacity, ...]:
    topology = report.topology
    return tuple(
        TypeCapacity(
            t,
            tuple(sorted(free_cores[p] for p in topology.pcpus_of(t.name) & report.bookable)),
            t.coefficient * kept,
            (t.nominal_ips or 0.0) * kept,
        )
        for t in topology.core_types
        if t.coefficient is not None
        for kept in (kept_ratio(t.smt_busy_factor, 1.0),)
    )


def quick_fit(capacity: HostCapacity, request: ReportedInstance) -> HostFit | None:
    """The fit if it needs no repacking: the request fits beside the other demands, or not at all.

    ``None`` if the host has to be packed anew to find out.
    """
    report, type_name = capacity.report, request.core_type
    if not request.vcpus:
        exists = any(t.name == type_name for t in report.topology.core_types)
        return HostFit() if exists else HostFit(refused=f"it has no core type '{type_name}'")
    if (name := _type_for_each(capacity, request)) is not None:
        return HostFit((name,) * len(request.vcpus))
    if not capacity.free:
        return HostFit(refused="its core types have no coefficients: calibrate the host")
    types = [f.core_type for f in capacity.free if type_name in (None, f.core_type.name)]
    if not types:
        return HostFit(refused=f"it has no core type '{type_name}' that is calibrated")
    demands = demands_of(request, report)
    if len(demands) < len(request.vcpus):
        return HostFit(refused="it is not calibrated for Ips bookings: run amp-nova calibrate")
    needs = [need_cores(demands[0], t) for t in types]
    if all(need is None or need > 1.0 + TOLERANCE for need in needs):
        return HostFit(refused=f"a vCPU of {demands[0].amount} is more than any core gives")
    least = sum(map(_least_refcores(report), (d.refcores for d in demands)))
    if least > capacity.refcores + TOLERANCE * len(demands):
        requested, free = sum_refcores(demands), max(0.0, capacity.refcores)
        return HostFit(refused=f"{requested:g} reference cores requested, {free:.3f} free")
    if capacity.complete:
        packing = place(demands, report.topology, capacity.left)
        if packing.complete:
            return _on(report, [packing.placed[d.key] for d in demands])
    return None


def _type_for_each(capacity: HostCapacity, request: ReportedInstance) -> str | None:
    """The core type that has a pCPU for each vCPU, if all book the same amount.

    As free capacities are sorted, one comparison shows that, which saves most of the time.
    """
    count, refcores, ips = len(request.vcpus), request.vcpus[0].refcores, request.vcpus[0].ips
    for vcpu in request.vcpus:
        if vcpu.refcores != refcores or vcpu.ips != ips or vcpu.cpus_allowed_list:
            return None
    for core_type, free, in_refcores, in_ips in capacity.free if capacity.complete else ():
        worth = in_refcores if ips is None else in_ips
        if not free or not worth or request.core_type not in (None, core_type.name):
            continue
        enough = (refcores or ips or 0.0) / worth - TOLERANCE
        if free[-1] < enough <= 1.0 and core_type.smt_busy_factor is None:
            enough = min(enough, 1.0 - capacity.report.reserve_ratio - TOLERANCE)
        if free[-1] < enough and core_type.smt_busy_factor is None:
            continue  # none of them has a place here
        return core_type.name if len(free) >= count and free[-count] >= enough else None
    return None


def repacked_fit(capacity: HostCapacity, request: ReportedInstance) -> HostFit:
    """The fit if the agent may move vCPUs to other pCPUs and core types; refuses huge hosts."""
    report = capacity.report
    demands = demands_of(request, report)
    present = list(demands_on(report, capacity.without, capacity.pending))
    if (len(present) + len(demands)) * len(report.topology.pcpus) > SEARCHED_MAX:
        return HostFit(
            refused="its free capacity is fragmented, and it is too large to be repacked"
        )
    packing = pack([*present, *demands], report.topology, report.reserve_ratio)
    if not packing.complete:
        reasons = [packing.unplaced[d.key] for d in demands if d.key in packing.unplaced]
        why = "; ".join(dict.fromkeys(reasons)) or "it is over-booked"
        if capacity.complete and not reasons:
            why = f"{sum_refcores(demands):g} reference cores are free only in fragments"
        return HostFit(refused=why)
    return _on(report, [packing.placed[d.key] for d in demands])


def _on(report: HostReport, pcpus: Sequence[int]) -> HostFit:
    types = map(report.topology.type_of, pcpus)
    return HostFit(tuple(t.name for t in types if t is not None))


def fit(capacity: HostCapacity, request: ReportedInstance) -> HostFit:
    """Whether a request fits a host."""
    return quick_fit(capacity, request) or repacked_fit(capacity, request)
