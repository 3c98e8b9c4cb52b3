"""Where demands have a place on a host: as its agent packed them, and best fit for the others."""

from collections.abc import Sequence

from amp_nova.admission import free_cores
from amp_nova.admission.free_cores import Option
from amp_nova.admission.packing import Demand, need_cores, shared_cores
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import CoreType
from amp_nova.wire.host_report import HostReport


def largest_first(demand: Demand) -> float:
    """A key that sorts demands, the largest first."""
    return -demand.refcores


def after(demands: Sequence[Demand], report: HostReport) -> tuple[dict[int, float], bool]:
    """The free cores of each pCPU beside the demands, and whether all of these have a place."""
    cores, unplaced = _packed(demands, report)
    places = [best_fit(cores, d, report) for d in sorted(unplaced, key=largest_first)]
    return cores, None not in places


def best_fit(cores: dict[int, float], demand: Demand, report: HostReport) -> CoreType | None:
    """Put a vCPU on the slowest core type that suffices, on the fullest pCPU that can hold it.

    If siblings slow each other down, only shared threads are tried. Returns the core type, or
    ``None`` if the vCPU does not fit; ``cores`` is changed in place.
    """
    for core_type in report.topology.core_types:
        need = taken_cores(demand, core_type, 1.0 - report.reserve_ratio)
        if demand.core_type not in (None, core_type.name) or need is None:
            continue
        allowed = report.topology.pcpus_of(core_type.name) & report.bookable & demand.allowed
        holding = [p for p in allowed if cores[p] >= need - TOLERANCE]
        if holding:
            cores[min(holding, key=lambda p: (cores[p], p))] -= need
            return core_type
    return None


def _packed(demands: Sequence[Demand], report: HostReport) -> tuple[dict[int, float], list[Demand]]:
    """The free cores of each pCPU as packed by the agent, and the demands it has not packed."""
    topology, free = report.topology, free_cores.empty(report.topology, report.reserve_ratio)
    placed, unplaced = [], []
    for demand in demands:
        core_type = None if demand.packed is None else topology.type_of(demand.packed)
        need = None if core_type is None else need_cores(demand, core_type)
        if demand.packed is None or core_type is None or need is None:
            unplaced.append(demand)
        elif not free.siblings:
            free.cores[demand.packed] -= free.bookable(need)
        else:
            option = Option(need, shared_cores(need, core_type), frozenset({demand.packed}))
            placed.append((demand.packed, option))
    # Demands that need a whole core first: they change what the others take of its threads.
    placed.sort(key=lambda place: not free.needs_whole(place[1]))
    for pcpu, option in placed:
        free.take(option, pcpu)
    return free.cores, unplaced


def taken_cores(demand: Demand, core_type: CoreType, usable: float) -> float | None:
    """What a vCPU takes of the bookable part of a pCPU whose siblings are busy.

    ``None`` if it needs more than that. The whole of a pCPU without siblings takes all of it.
    """
    if (alone := need_cores(demand, core_type)) is None:
        return None
    need = shared_cores(alone, core_type)
    if need <= usable + TOLERANCE:
        return need
    return usable if need == alone and need <= 1.0 + TOLERANCE else None
