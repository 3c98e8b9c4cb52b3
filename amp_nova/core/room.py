"""What room a host has for one more booking, by its agent's own report.

The scheduler asks thousands of hosts at once, so most answers come from what was worked out when
the report arrived: where the agent has packed everybody, and what is left beside them. Only a host
that has enough in sum and not in one piece is packed anew, with the packing that its agent uses.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from amp_nova.core import capacity
from amp_nova.core.booking import Booking, VcpuBooking
from amp_nova.core.capacity import TOLERANCE, Demand
from amp_nova.core.snapshot import HostSnapshot, InstanceShare
from amp_nova.core.topology import Topology


@dataclass(frozen=True, slots=True)
class Ask:
    """What an instance without a place wants: its booking, by the size of its vCPUs."""

    vcpus: tuple[VcpuBooking, ...]
    core_type: str | None = None

    @property
    def in_ips(self) -> bool:
        """Whether any vCPU books instructions, which only some hosts can convert."""
        return any(v.kind == "ips" for v in self.vcpus)


def ask_of(booking: Booking) -> Ask:
    """The part of a booking that takes room: vCPUs of best effort take none."""
    return Ask(tuple(v for v in booking.vcpus if v.kind != "best_effort"), booking.core_type)


@dataclass(frozen=True, slots=True)
class Lane:
    """The pCPUs of one core type that a new instance may use: what is free on each, ascending."""

    core_type: str
    coefficient: float
    free_cores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """A host with all that holds a place on it, and what they leave, slowest core type first.

    ``complete``: everybody has a place, so that what is free is free for newcomers.
    """

    snapshot: HostSnapshot
    held: tuple[Demand, ...]
    lanes: tuple[Lane, ...]
    complete: bool
    reference_ips: float | None
    worth_refcores: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether an instance fits: the core type of each vCPU, slowest first; or why it does not."""

    core_types: tuple[str, ...] = ()
    refused: str | None = None


_FirstFit = tuple[tuple[str, ...], dict[str, list[float]]]


def reference_ips(topology: Topology) -> float | None:
    """Ips of the reference core as this host was calibrated; ``None`` where it was not."""
    for core_type in topology.core_types:
        if core_type.nominal_ips is not None and core_type.coefficient is not None:
            return core_type.nominal_ips / core_type.coefficient
    return None


def refcores(vcpu: VcpuBooking, ips: float | None) -> float | None:
    """What a vCPU books, in reference cores of ``ips`` each; ``None`` if that cannot be told."""
    if vcpu.ips is None:
        return vcpu.refcores
    return None if ips is None else vcpu.ips / ips


def _held(instance: InstanceShare, ips: float | None) -> list[Demand]:
    demands = []
    for vcpu in instance.vcpus:
        size = vcpu.refcores
        if size is None and vcpu.ips is not None and ips is not None:
            size = vcpu.ips / ips
        if size is None:
            continue
        demands.append(
            Demand(
                (instance.resource, vcpu.index),
                size,
                vcpu.allowed,
                instance.core_type,
                vcpu.core_type,
                vcpu.pcpu,
                settled=vcpu.pcpu is not None,
            )
        )
    return demands


def room(
    snapshot: HostSnapshot,
    without: str | None = None,
    pending: Mapping[str, Ask] = MappingProxyType({}),
) -> Room:
    """The room of a host, ``without`` the share of one instance that is on it.

    ``pending``: instances that were sent there and that its agent has not reported yet.
    """
    topology, ips = snapshot.topology, reference_ips(snapshot.topology)
    free = {p.id: 1.0 - snapshot.reserve_ratio for p in topology.pcpus}
    held = {i.resource: _held(i, ips) for i in snapshot.instances if i.resource != without}
    for resource, ask in pending.items():
        sent = _wanted(resource, ask, ips, snapshot.bookable)
        # One that is resized where it is has its old size or its new one: count the greater.
        if resource != without and _worth(sent) >= _worth(held.get(resource, ())):
            held[resource] = sent
    demands = [demand for each in held.values() for demand in each]
    homeless = []
    for demand in demands:
        core_type = None if demand.pcpu is None else topology.type_of(demand.pcpu)
        if demand.pcpu is None or core_type is None or not core_type.coefficient:
            homeless.append(demand)
        else:
            free[demand.pcpu] -= demand.refcores / core_type.coefficient
    # Whoever moves from one type to another takes its reference cores along: this sum stays.
    worth = sum(
        t.coefficient * share
        for p, share in free.items()
        if (t := topology.type_of(p)) is not None and t.coefficient is not None
    )
    lanes, complete = _lanes(snapshot, free), True
    for demand in sorted(homeless, key=lambda d: -d.refcores):
        worth -= demand.refcores
        found = _first_fit(_of_type(lanes, demand.core_type), (demand.refcores,))
        if found is None:
            complete = False
            continue
        left = found[1]
        lanes = tuple(
            Lane(n.core_type, n.coefficient, tuple(left.get(n.core_type, n.free_cores)))
            for n in lanes
        )
    return Room(snapshot, tuple(demands), lanes, complete, ips, worth)


def _worth(demands: Sequence[Demand]) -> float:
    return sum(d.refcores for d in demands)


def _lanes(snapshot: HostSnapshot, free: Mapping[int, float]) -> tuple[Lane, ...]:
    return tuple(
        Lane(
            t.name,
            t.coefficient,
            tuple(sorted(free[p] for p in snapshot.topology.pcpus_of(t.name) & snapshot.bookable)),
        )
        for t in snapshot.topology.core_types
        if t.coefficient is not None
    )


def _of_type(lanes: tuple[Lane, ...], core_type: str | None) -> tuple[Lane, ...]:
    return lanes if core_type is None else tuple(n for n in lanes if n.core_type == core_type)


def sizes_of(ask: Ask, ips: float | None) -> tuple[float, ...] | None:
    """Reference cores of each vCPU, greatest first; ``None`` if this host cannot convert them."""
    if not ask.in_ips:
        return tuple(sorted((v.refcores or 0.0 for v in ask.vcpus), reverse=True))
    if ips is None:
        return None
    return tuple(sorted((refcores(v, ips) or 0.0 for v in ask.vcpus), reverse=True))


def _wanted(resource: str, ask: Ask, ips: float | None, allowed: frozenset[int]) -> list[Demand]:
    return [
        Demand((resource, v.index), size, allowed, ask.core_type)
        for v in ask.vcpus
        if (size := refcores(v, ips)) is not None
    ]


def _first_fit(lanes: tuple[Lane, ...], sizes: Sequence[float]) -> _FirstFit | None:
    """Put every vCPU on the slowest type that suffices, onto the fullest pCPU with room for it.

    What types they get, and what is left then on the types that they use; ``None`` if one of them
    finds no place.
    """
    used: dict[str, list[float]] = {}
    types = []
    for size in sizes:
        for lane in lanes:
            need = size / lane.coefficient
            if need > 1.0 + TOLERANCE:
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
    if (sizes := sizes_of(ask, room.reference_ips)) is None:
        return Fit(refused="it is not calibrated, so Ips cannot be converted")
    if room.complete and (found := _first_fit(lanes, sizes)) is not None:
        return Fit(found[0])
    largest = max(lane.coefficient for lane in lanes)
    if sizes and sizes[0] > largest + TOLERANCE:
        return Fit(refused=f"a vCPU of {sizes[0]:g} reference cores is more than any core gives")
    asked = sum(sizes)
    if asked > room.worth_refcores + TOLERANCE * max(1, len(sizes)):
        free = max(0.0, room.worth_refcores)
        return Fit(refused=f"{asked:g} reference cores are asked and {free:.3f} are free")
    return None


def thorough(room: Room, ask: Ask) -> Fit:
    """The answer of the agent's own packing, which may move vCPUs to make room."""
    asked = _wanted("", ask, room.reference_ips, room.snapshot.bookable)
    topology = room.snapshot.topology
    packing = capacity.pack([*room.held, *asked], topology, room.snapshot.reserve_ratio)
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
