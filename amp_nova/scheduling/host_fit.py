"""What room a host has for one more booking, by its agent's own report.

The scheduler asks thousands of hosts at once, so most answers come from what was worked out when
the report arrived: where the agent has packed everybody, and what is left beside them. Only a host
that has enough in sum and not in one piece is packed anew, with the packing that its agent uses.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from amp_nova.admission import packing as packing_
from amp_nova.admission.packing import Demand
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import Topology
from amp_nova.wire.host_report import HostSnapshot, InstanceShare


@dataclass(frozen=True, slots=True)
class Ask:
    """What an instance without a place wants: its booking, by the size of its vCPUs."""

    vcpus: tuple[VcpuBooking, ...]
    core_type: str | None = None


def ask_of(booking: Booking) -> Ask:
    """The part of a booking that takes room: vCPUs of best effort take none."""
    return Ask(tuple(v for v in booking.vcpus if v.kind != "best_effort"), booking.core_type)


@dataclass(frozen=True, slots=True)
class Lane:
    """The pCPUs of one core type that a new instance may use: what is free on each, ascending."""

    core_type: str
    coefficient: float
    free_cores: tuple[float, ...]
    nominal_ips: float | None = None

    def need_cores(self, size: "Size") -> float | None:
        """Share of one of its pCPUs that a vCPU needs; ``None`` if that cannot be told."""
        if size.ips is None:
            return size.refcores / self.coefficient
        return None if self.nominal_ips is None else size.ips / self.nominal_ips


@dataclass(frozen=True, slots=True)
class Size:
    """What a vCPU books; ``refcores``, of one that books ``ips``: what that is at least here."""

    refcores: float
    ips: float | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """A host with all that holds a place on it, and what they leave, slowest core type first.

    ``complete``: everybody has a place, so that what is free is free for newcomers.
    """

    snapshot: HostSnapshot
    held: tuple[Demand, ...]
    lanes: tuple[Lane, ...]
    complete: bool
    worth_refcores: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether an instance fits: the core type of each vCPU, greatest first; or why it does not."""

    core_types: tuple[str, ...] = ()
    refused: str | None = None


_FirstFit = tuple[tuple[str, ...], dict[str, list[float]]]


def _size(refcores: float | None, ips: float | None, topology: Topology) -> Size | None:
    """The size of a vCPU on a host; ``None`` if it books nothing, or what cannot be converted."""
    if ips is not None:
        refcores = packing_.least_refcores(ips, topology)
    return None if refcores is None else Size(refcores, ips)


def _held(instance: InstanceShare, topology: Topology) -> list[Demand]:
    return [
        Demand(
            (instance.resource, vcpu.index),
            size.refcores,
            vcpu.allowed,
            instance.core_type,
            vcpu.core_type,
            settled=vcpu.pcpu is not None,
            ips=size.ips,
            packed=vcpu.pcpu,
        )
        for vcpu in instance.vcpus
        if (size := _size(vcpu.refcores, vcpu.ips, topology)) is not None
    ]


def room(
    snapshot: HostSnapshot,
    without: str | None = None,
    pending: Mapping[str, Ask] = MappingProxyType({}),
) -> Room:
    """The room of a host, ``without`` the share of one instance that is on it.

    ``pending``: instances that were sent there and that its agent has not reported yet.
    """
    topology, whole = snapshot.topology, 1.0 - snapshot.reserve_ratio
    free = {p.id: whole for p in topology.pcpus}
    held = {i.resource: _held(i, topology) for i in snapshot.instances if i.resource != without}
    for resource, ask in pending.items():
        sent = _wanted(resource, ask, topology, snapshot.bookable)
        # One that is resized where it is has its old size or its new one: count the greater.
        if resource != without and _worth(sent) >= _worth(held.get(resource, ())):
            held[resource] = sent
    demands = [demand for each in held.values() for demand in each]
    homeless = []
    for demand in demands:
        core_type = None if demand.packed is None else topology.type_of(demand.packed)
        need = None if core_type is None else packing_.need_cores(demand, core_type)
        if demand.packed is None or need is None:
            homeless.append(demand)
        else:
            free[demand.packed] -= need
    # Whoever moves from one type to another takes its reference cores along: this stays.
    worth = whole * _capacity(topology) - _worth(demands)
    lanes, complete = _lanes(snapshot, free), True
    for demand in sorted(homeless, key=lambda d: -d.refcores):
        size = Size(demand.refcores, demand.ips)
        found = _first_fit(_of_type(lanes, demand.core_type), (size,))
        if found is None:
            complete = False
            continue
        left = found[1]
        lanes = tuple(
            replace(n, free_cores=tuple(left.get(n.core_type, n.free_cores))) for n in lanes
        )
    return Room(snapshot, tuple(demands), lanes, complete, worth)


def _capacity(topology: Topology) -> float:
    """All its pCPUs, in reference cores."""
    return sum(
        t.coefficient * len(topology.pcpus_of(t.name))
        for t in topology.core_types
        if t.coefficient is not None
    )


def _worth(demands: Sequence[Demand]) -> float:
    return sum(d.refcores for d in demands)


def _lanes(snapshot: HostSnapshot, free: Mapping[int, float]) -> tuple[Lane, ...]:
    return tuple(
        Lane(
            t.name,
            t.coefficient,
            tuple(sorted(free[p] for p in snapshot.topology.pcpus_of(t.name) & snapshot.bookable)),
            t.nominal_ips,
        )
        for t in snapshot.topology.core_types
        if t.coefficient is not None
    )


def _of_type(lanes: tuple[Lane, ...], core_type: str | None) -> tuple[Lane, ...]:
    return lanes if core_type is None else tuple(n for n in lanes if n.core_type == core_type)


def sizes_of(ask: Ask, topology: Topology) -> tuple[Size, ...] | None:
    """What each vCPU books, greatest first; ``None`` if this host cannot convert it."""
    sizes = [_size(v.refcores, v.ips, topology) for v in ask.vcpus]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    return tuple(sorted(known, key=lambda size: -size.refcores))


def _wanted(resource: str, ask: Ask, topology: Topology, allowed: frozenset[int]) -> list[Demand]:
    return [
        Demand((resource, v.index), size.refcores, allowed, ask.core_type, ips=size.ips)
        for v in ask.vcpus
        if (size := _size(v.refcores, v.ips, topology)) is not None
    ]


def _first_fit(lanes: tuple[Lane, ...], sizes: Sequence[Size]) -> _FirstFit | None:
    """Put every vCPU on the slowest type that suffices, onto the fullest pCPU with room for it.

    What types they get, and what is left then on the types that they use; ``None`` if one of them
    finds no place.
    """
    used: dict[str, list[float]] = {}
    types = []
    for size in sizes:
        for lane in lanes:
            need = lane.need_cores(size)
            if need is None or need > 1.0 + TOLERANCE:
                continue
            left: Sequence[float] = used.get(lane.core_type, lane.free_cores)
            at = bisect_left(left, need - TOLERANCE)
            if at == len(left):
                continue
            changed = used.setdefault(lane.core_type, list(left))
            insort(changed, changed.pop(at) - need)
            types.append(lane.core_type)
            break
        else:
            return None
    return tuple(types), used


def _amount(size: Size) -> str:
    if size.ips is not None:
        return f"{size.ips:.4g} instructions per second"
    return f"{size.refcores:g} reference cores"


def quick(room: Room, ask: Ask) -> Fit | None:
    """The answer if it is plain: fits beside what is there, or cannot fit at all; else ``None``."""
    lanes = room.lanes
    if not ask.vcpus:
        there = any(t.name == ask.core_type for t in room.snapshot.topology.core_types)
        return Fit() if there else Fit(refused=f"it has no core type '{ask.core_type}'")
    if not lanes:
        return Fit(refused="the coefficient of its core types is not known")
    if not (lanes := _of_type(lanes, ask.core_type)):
        return Fit(refused=f"it has no core type '{ask.core_type}' that is calibrated")
    if (sizes := sizes_of(ask, room.snapshot.topology)) is None:
        return Fit(refused="it is not calibrated, so Ips cannot be converted")
    if room.complete and (found := _first_fit(lanes, sizes)) is not None:
        return Fit(found[0])
    for size in sizes[:1]:
        if all((need := n.need_cores(size)) is None or need > 1.0 + TOLERANCE for n in lanes):
            return Fit(refused=f"a vCPU of {_amount(size)} is more than any core gives")
    asked = sum(size.refcores for size in sizes)
    if asked > room.worth_refcores + TOLERANCE * max(1, len(sizes)):
        free = max(0.0, room.worth_refcores)
        return Fit(refused=f"{asked:g} reference cores are asked and {free:.3f} are free")
    return None


def thorough(room: Room, ask: Ask) -> Fit:
    """The answer of the agent's own packing, which may move vCPUs to make room."""
    topology = room.snapshot.topology
    asked = _wanted("", ask, topology, room.snapshot.bookable)
    asked.sort(key=lambda demand: -demand.refcores)
    packing = packing_.pack([*room.held, *asked], topology, room.snapshot.reserve_ratio)
    if not packing.complete:
        reasons = [packing.unplaced[d.key] for d in asked if d.key in packing.unplaced]
        why = "; ".join(dict.fromkeys(reasons)) or "it is over-booked"
        if room.complete and not reasons:
            total = sum(d.refcores for d in asked)
            why = f"{total:g} reference cores are not free in one piece"
        return Fit(refused=why)
    types = [topology.type_of(packing.placed[d.key]) for d in asked]
    return Fit(tuple(t.name for t in types if t is not None))


def fit(room: Room, ask: Ask) -> Fit:
    """Whether an instance fits a host."""
    return quick(room, ask) or thorough(room, ask)
