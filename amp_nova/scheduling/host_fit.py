"""Host fit: whether a booking fits a host, judged by its agent's last report.

The filter tries thousands of hosts per request. For most of them ``quick_fit`` answers from the
free capacity, which is computed once per report: the agent has packed its instances, and the new
one goes beside them. Only a host whose free capacity is large enough in total but fragmented is
packed anew, by ``repacked_fit``, with the agent's own packing.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from amp_nova.admission import free_cores
from amp_nova.admission.free_cores import Option
from amp_nova.admission.packing import Demand, need_cores, pack
from amp_nova.hardware.effective_speed import bookable_refcores, kept_ratio
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import CoreType
from amp_nova.scheduling.demands import Request, demands_on, requested_demands, sum_refcores
from amp_nova.wire.host_report import HostReport

REPACKED_MAX = 1 << 14
"""Most booked vCPUs times pCPUs of a host that is packed anew, such as 256 on 64 pCPUs: no host may
slow requests down."""


class _Amount(NamedTuple):
    """What a vCPU without a place needs of a ``Demand``, in less memory: there may be thousands.

    ``allowed``: ``None`` if it may use all bookable pCPUs.
    """

    refcores: float
    ips: float | None
    core_type: str | None
    allowed: frozenset[int] | None


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


def headroom_of(
    report: HostReport,
    without: str | None = None,
    pending: Mapping[str, Request] = MappingProxyType({}),
) -> Headroom:
    """The headroom of a host; arguments as for ``demands_on``."""
    everywhere = frozenset(p.id for p in report.topology.pcpus)
    capacity = sum(bookable_refcores(report.topology, everywhere).values())
    cores, unplaced, booked = _packed(demands_on(report, without, pending), report)
    complete = _place(cores, [d for d in unplaced if d.allowed is not None], report)
    free = _free_capacity(report, cores)
    left = [list(f.free_cores) for f in free]
    # A host may have thousands without a place: those that are alike are counted.
    counts = Counter(d for d in unplaced if d.allowed is None)
    # Every one of them takes what it can get, even if another finds no place.
    for amount in sorted(counts, key=_largest_first):
        count = counts[amount]
        complete &= len(_take(free, left, amount, report.reserve_ratio, count)) == count
    if counts:
        free = tuple(f._replace(free_cores=tuple(c)) for f, c in zip(free, left, strict=True))
    refcores = (1.0 - report.reserve_ratio) * capacity - booked
    return Headroom(report, without, pending, free, complete, refcores)


def _largest_first(demand: Demand | _Amount) -> float:
    return -demand.refcores


def _packed(
    demands: Iterable[Demand], report: HostReport
) -> tuple[dict[int, float], list[_Amount], float]:
    """The free cores of each pCPU as packed by the agent, the demands that it has not packed, and
    the least that all of them take, in reference cores."""
    topology, free = report.topology, free_cores.empty(report.topology, report.reserve_ratio)
    placed, unplaced, booked, least = [], [], 0.0, _least_refcores(report)
    worth = {t.name: kept_ratio(t.smt_busy_factor, 1.0) for t in topology.core_types}
    narrow: dict[frozenset[int], frozenset[int] | None] = {}
    for demand in demands:
        booked += least(demand.refcores)
        core_type = None if demand.packed is None else topology.type_of(demand.packed)
        need = None if core_type is None else need_cores(demand, core_type)
        if demand.packed is None or core_type is None or need is None:
            if (at := demand.allowed) not in narrow:
                narrow[at] = None if at >= report.bookable else at
            unplaced.append(_Amount(demand.refcores, demand.ips, demand.core_type, narrow[at]))
        elif not free.siblings:
            free.cores[demand.packed] -= free.bookable(need)
        else:
            kept = worth[core_type.name]
            option = Option(need, need / kept if kept else math.inf, demand.allowed)
            # Demands that need a whole core first: they change what the others take of its threads.
            if free.needs_whole(option):
                free.take(option, demand.packed)
            else:
                placed.append((demand.packed, need, kept))
    for pcpu, need, kept in placed:  # what needs no whole core has a share of a thread
        slowed = pcpu in free.siblings and pcpu not in free.whole
        free.cores[pcpu] -= need / kept if slowed else need
    return free.cores, unplaced, booked


def _least_refcores(report: HostReport) -> Callable[[float], float]:
    """The least that a booking takes of what may be booked on a host: less if alone on a pCPU."""
    usable = 1.0 - report.reserve_ratio
    shared = usable * min((t.coefficient or 0.0 for t in report.topology.core_types), default=0.0)
    return lambda refcores: refcores if refcores <= shared else usable * refcores


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


def _take(
    free: Sequence[FreeCapacity],
    left: Sequence[list[float]],
    demand: Demand | _Amount,
    reserve_ratio: float,
    count: int = 1,
) -> list[str]:
    """Put vCPUs on the slowest core type that suffices, each on the fullest pCPU that can hold it.

    If siblings slow each other down, only shared threads are tried. ``left``: the free cores of
    each of ``free``, ascending, which are changed. ``count``: how many vCPUs, all alike. Returns
    the core type of each that fits.
    """
    names: list[str] = []
    for there, cores in zip(free, left, strict=True):
        need = _taken_cores(demand, there, 1.0 - reserve_ratio)
        if need is None:
            continue
        enough = need - TOLERANCE
        while len(names) < count and cores and cores[-1] >= enough:
            insort(cores, cores.pop(bisect_left(cores, enough)) - need)
            names.append(there.core_type.name)
    return names


def _taken_cores(demand: Demand | _Amount, there: FreeCapacity, most: float) -> float | None:
    """What a vCPU takes of a pCPU whose siblings are busy; ``None`` if that is over ``most``."""
    worth = there.refcores if demand.ips is None else there.ips
    if not worth or demand.core_type not in (None, there.core_type.name):
        return None
    need = (demand.ips or demand.refcores) / worth
    if most < need <= 1.0 + TOLERANCE and there.refcores == there.core_type.coefficient:
        return most  # a pCPU to itself
    return need if need <= most + TOLERANCE else None


def _place(cores: dict[int, float], unplaced: Sequence[_Amount], report: HostReport) -> bool:
    """As ``_take``, each on its own pCPUs, the largest first; whether all of them have a place.

    ``cores``: the free cores of each pCPU, which are changed.
    """
    if len(unplaced) * len(report.topology.pcpus) > REPACKED_MAX:
        return False
    free = _free_capacity(report, cores) if unplaced else ()
    return None not in [
        _take_own(cores, free, d, report) for d in sorted(unplaced, key=_largest_first)
    ]


def _take_own(
    cores: dict[int, float],
    free: Sequence[FreeCapacity],
    demand: Demand | _Amount,
    report: HostReport,
) -> str | None:
    for there in free:
        need = _taken_cores(demand, there, 1.0 - report.reserve_ratio)
        name = there.core_type.name
        allowed = (
            report.topology.pcpus_of(name) & report.bookable & (demand.allowed or report.bookable)
        )
        holding = [] if need is None else [p for p in allowed if cores[p] >= need - TOLERANCE]
        if need is not None and holding:
            cores[min(holding, key=lambda p: (cores[p], p))] -= need
            return name
    return None


def _first_fit(headroom: Headroom, demands: Sequence[Demand]) -> tuple[str, ...] | None:
    """The core type of each vCPU beside the other demands; ``None`` if one does not fit."""
    left = [list(f.free_cores) for f in headroom.free]
    ratio = headroom.report.reserve_ratio
    names = [name for demand in demands for name in _take(headroom.free, left, demand, ratio)]
    return None if len(names) < len(demands) else tuple(names)


def _pinned_fit(headroom: Headroom, demands: Sequence[Demand]) -> tuple[str, ...] | None:
    """As ``_first_fit``, for demands that may not use all pCPUs."""
    report = headroom.report
    present = demands_on(report, headroom.without, headroom.pending)
    cores, unplaced, _ = _packed(present, report)
    own = [d for d in unplaced if d.allowed is not None]
    others = [d for d in unplaced if d.allowed is None]
    if not (_place(cores, own, report) and _place(cores, others, report)):
        return None
    names = [_take_own(cores, headroom.free, demand, report) for demand in demands]
    return None if None in names else tuple(filter(None, names))


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
    first_fit = _pinned_fit if request.pcpus else _first_fit
    if headroom.complete and (names := first_fit(headroom, demands)) is not None:
        return HostFit(names)
    needs = [need_cores(demands[0], t) for t in types]
    if all(need is None or need > 1.0 + TOLERANCE for need in needs):
        return HostFit(refused=f"a vCPU of {demands[0].amount} is more than any core gives")
    least = sum(map(_least_refcores(report), (d.refcores for d in demands)))
    if least > headroom.refcores + TOLERANCE * len(demands):
        requested, free = sum_refcores(demands), max(0.0, headroom.refcores)
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
    """The fit if the agent may move vCPUs to other pCPUs and core types; refuses huge hosts."""
    report = headroom.report
    demands = requested_demands(request, report)
    present = list(demands_on(report, headroom.without, headroom.pending))
    if (len(present) + len(demands)) * len(report.topology.pcpus) > REPACKED_MAX:
        return HostFit(
            refused="its free capacity is fragmented, and it is too large to be repacked"
        )
    packing = pack([*present, *demands], report.topology, report.reserve_ratio)
    if not packing.complete:
        reasons = [packing.unplaced[d.key] for d in demands if d.key in packing.unplaced]
        why = "; ".join(dict.fromkeys(reasons)) or "it is over-booked"
        if headroom.complete and not reasons:
            why = f"{sum_refcores(demands):g} reference cores are free only in fragments"
        return HostFit(refused=why)
    types = [report.topology.type_of(packing.placed[d.key]) for d in demands]
    return HostFit(tuple(t.name for t in types if t is not None))


def fit(headroom: Headroom, request: Request) -> HostFit:
    """Whether a request fits a host."""
    return quick_fit(headroom, request) or repacked_fit(headroom, request)


def servers_that_fit(
    report: HostReport,
    request: Request,
    most: int,
    present: Mapping[str, Request] = MappingProxyType({}),
) -> int:
    """How many servers with this request fit a host one after the other, at most ``most``.

    ``present``: instances on the host that the report does not have.
    Found by bisection: a host that fits some number of servers normally fits any smaller number.
    """
    fewest = 0
    while fewest < most:
        count = (fewest + most + 1) // 2
        before = {**present, **{f"new {n}": request for n in range(count - 1)}}
        if fit(headroom_of(report, pending=before), request).refused is None:
            fewest = count
        else:
            most = count - 1
    return fewest
