"""Reference cores, cores and quotas, and whether bookings fit a host.

A booked vCPU of ``b`` reference cores needs ``b / coef(type)`` of one pCPU of a type with
``coef >= b`` (teabe2017, section 3.1). A host holds a set of bookings if and only if they can be
packed onto its pCPUs, none filled above 1 minus the operator's reserve. The scheduler's filter, the
agent and the simulator all ask ``pack``. One that books instructions per second needs its part of
what such a pCPU retires nominally.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import CoreType, Topology

_NOTHING: Mapping[str, float] = MappingProxyType({})


SEARCH_STEPS_MAX = 200
"""Effort for a packing that first fit does not find: 20 ms on 64 full pCPUs."""
SEARCH_ITEMS_MAX = 300
"""With more vCPUs than this, first fit comes close enough."""


def cores(refcores: float, core_type: CoreType) -> float | None:
    """Share of one such pCPU that is worth ``refcores``; ``None`` if its speed is unknown."""
    return None if core_type.coefficient is None else refcores / core_type.coefficient


@dataclass(frozen=True, slots=True)
class Demand:
    """One booked vCPU that wants a place. Demands are told apart by the text of their ``key``.

    ``allowed``: pCPUs that Nova and libvirt leave it; ``core_type``: the one its flavor insists on;
    ``current``: the core type it is kept on now, and ``pcpu`` the pCPU, if it is a single one: to
    stay there spares a move. ``packed``: the pCPU that it was packed onto last, whether or not it
    is kept on it. ``settled``: it has a place, which none who comes later may take. ``ips``: what
    it books in instructions per second; ``refcores`` then is what that is at least.
    """

    key: Hashable
    refcores: float
    allowed: frozenset[int]
    core_type: str | None = None
    current: str | None = None
    pcpu: int | None = None
    settled: bool = False
    coefficients: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    """Its own coefficient of a core type, where that differs from the type's."""
    ips: float | None = None
    packed: int | None = None

    @property
    def amount(self) -> str:
        """What it books, in words."""
        if self.ips is not None:
            return f"{self.ips:.4g} instructions per second"
        return f"{self.refcores:g} reference cores"


def need_cores(demand: Demand, core_type: CoreType) -> float | None:
    """Share of one such pCPU that a vCPU needs; ``None`` if the type's speed is unknown."""
    if demand.ips is not None:
        return None if core_type.nominal_ips is None else demand.ips / core_type.nominal_ips
    own = demand.coefficients.get(core_type.name)
    if own is None or core_type.coefficient is None:
        return cores(demand.refcores, core_type)
    return demand.refcores / own


def least_refcores(ips: float, topology: Topology) -> float | None:
    """What a booking in Ips is at least, in reference cores; ``None`` if that is not known."""
    worth = [
        ips / t.nominal_ips * (t.coefficient or 1.0)
        for t in topology.core_types
        if t.nominal_ips is not None
    ]
    return min(worth, default=None)


@dataclass(frozen=True, slots=True)
class Packing:
    """Where booked vCPUs go: a pCPU each, or the reason why there is none."""

    placed: Mapping[Hashable, int]
    unplaced: Mapping[Hashable, str]
    free_cores: Mapping[int, float]
    most_cores: Mapping[Hashable, float] = field(default_factory=lambda: MappingProxyType({}))
    """What those that may have more than they need may have at the most
    (``admission.headroom``)."""
    unbooked_cores: Mapping[Hashable, Mapping[str, float]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """What vCPUs without a booking may have, by core type, where they do not yield to bookings."""

    @property
    def complete(self) -> bool:
        """Whether everything found a place."""
        return not self.unplaced


@dataclass(frozen=True, slots=True)
class _Item:
    """A demand and its options, what it prefers first: the cores it needs there, and the pCPUs."""

    demand: Demand
    options: tuple[tuple[float, frozenset[int]], ...]

    def places(self, free: Mapping[int, float]) -> Iterator[tuple[int, float]]:
        """pCPUs with room for it and what it needs there; its own first, then the fullest."""
        for need, pcpus in self.options:
            found = [p for p in pcpus if free[p] >= need - TOLERANCE]
            for pcpu in sorted(found, key=lambda p: (p != self.demand.pcpu, free[p], p)):
                yield pcpu, need


def _item(demand: Demand, topology: Topology, *, stay: bool) -> _Item:
    """The core type it is on comes first (with ``stay``: alone), then the slowest that suffices."""
    options = []
    for core_type in topology.core_types:
        if demand.core_type not in (None, core_type.name):
            continue
        need = need_cores(demand, core_type)
        pcpus = demand.allowed & topology.pcpus_of(core_type.name)
        if need is None or need > 1.0 + TOLERANCE or not pcpus:
            continue
        if core_type.name != demand.current:
            options.append((need, pcpus))
        elif stay:
            return _Item(demand, ((need, pcpus),))
        else:
            options.insert(0, (need, pcpus))
    return _Item(demand, tuple(options))


def _reason(demand: Demand, topology: Topology) -> str:
    if _item(demand, topology, stay=False).options:
        return f"{demand.amount} are not free on any pCPU it may use"
    if not any(topology.type_of(p) for p in demand.allowed):
        return "none of the pCPUs it may use is online"
    where = f"core type {demand.core_type}" if demand.core_type else "any core type it may use"
    return f"{demand.amount} per vCPU are more than {where} can give"


def _hardest_first(item: _Item) -> tuple[Any, ...]:
    # Newcomers last among equals: what they are called must not matter, only then does whoever
    # asks for them before they have a name get the same answer.
    demand = item.demand
    return len(demand.allowed), -demand.refcores, demand.current is None, str(demand.key)


def _settled_first(item: _Item) -> tuple[Any, ...]:
    return item.demand.pcpu is None, item.demand.current is None, *_hardest_first(item)


def _first_fit(items: Iterable[_Item], topology: Topology, base: Packing) -> Packing:
    """Put one after the other onto the fullest pCPU with room for it, beside what is there."""
    free = dict(base.free_cores)
    placed, unplaced = dict(base.placed), dict(base.unplaced)
    for item in items:
        if (place := next(item.places(free), None)) is None:
            unplaced[item.demand.key] = _reason(item.demand, topology)
            continue
        pcpu, need = place
        placed[item.demand.key] = pcpu
        free[pcpu] -= need
    return Packing(placed, unplaced, free)


def _search(items: Sequence[_Item], topology: Topology, room_cores: float) -> Packing | None:
    """Place all by trying, depth first; ``None`` if that is impossible or takes too long to tell.

    pCPUs with equal room that the same vCPUs may use are alike, and one of them is tried. A state
    that led nowhere is not entered again.
    """
    free = {p.id: room_cores for p in topology.pcpus}
    worth = sum((t.coefficient or 0.0) * room_cores for p in free if (t := topology.type_of(p)))
    asked = sum(item.demand.refcores for item in items)
    if len(items) > SEARCH_ITEMS_MAX or asked > worth + TOLERANCE * len(items):
        return None
    groups = {pcpus for item in items for _, pcpus in item.options}
    kind = {p: tuple(p in group for group in groups) for p in free}
    placed: dict[Hashable, int] = {}
    dead_ends: set[object] = set()
    steps = len(items) + SEARCH_STEPS_MAX

    def rest(at: int) -> bool:
        nonlocal steps
        if at == len(items):
            return True
        like = {p: (kind[p], round(room, 9)) for p, room in free.items()}
        state = (at, tuple(sorted(like.values())))
        steps -= 1
        if steps < 0 or state in dead_ends:
            return False
        tried = set()
        for pcpu, need in list(items[at].places(free)):
            if like[pcpu] in tried:
                continue
            tried.add(like[pcpu])
            room = free[pcpu]
            free[pcpu] = room - need
            if rest(at + 1):
                placed[items[at].demand.key] = pcpu
                return True
            free[pcpu] = room
        dead_ends.add(state)
        return False

    return Packing(placed, {}, free) if rest(0) else None


def _as_packed(demand: Demand) -> Demand:
    return demand if demand.packed is None else replace(demand, pcpu=demand.packed)


def _attempts(
    demands: Sequence[Demand], topology: Topology, room_cores: float
) -> Iterator[Packing | None]:
    """Ways to pack, from the one that moves nothing to the one that finds a way if there is one."""
    empty = Packing({}, {}, {p.id: room_cores for p in topology.pcpus})
    moving = any(d.current is not None for d in demands)
    for stay in (True, False) if moving else (False,):
        items = sorted((_item(d, topology, stay=stay) for d in demands), key=_hardest_first)
        yield _first_fit(sorted(items, key=_settled_first) if stay else items, topology, empty)
        if stay:
            # All where they are and newcomers beside: what a scheduler tries before all else.
            again = [_item(_as_packed(d), topology, stay=True) for d in demands]
            yield _first_fit(sorted(again, key=_settled_first), topology, empty)
        yield _search(items, topology, room_cores)


def _first_complete(
    demands: Sequence[Demand], topology: Topology, room_cores: float
) -> tuple[Packing | None, Packing]:
    """The first attempt that places all, if any does, and the very first one."""
    first = None
    for attempt in _attempts(demands, topology, room_cores):
        first = first or attempt
        if attempt is not None and attempt.complete:
            return attempt, attempt
    assert first is not None  # first fit always gives one
    return None, first


def pack(demands: Iterable[Demand], topology: Topology, reserve_ratio: float = 0.0) -> Packing:
    """Pack booked vCPUs onto pCPUs; one that has a core type leaves it only if not all fit else.

    If not all fit, those that have a place keep one, where they are if they can, and the others get
    what is left. What does not fit on its own (too large, none of its pCPUs online) is left out in
    any case. Deterministic, whatever the order of ``demands``.
    """
    room_cores = 1.0 - reserve_ratio
    whole = {p.id: room_cores for p in topology.pcpus}
    able: list[Demand] = []
    unable = {}
    for demand in demands:
        if next(_item(demand, topology, stay=False).places(whole), None) is not None:
            able.append(demand)
        else:
            unable[demand.key] = _reason(demand, topology)
    packing, _ = _first_complete(able, topology, room_cores)
    if packing is None:
        _, base = _first_complete([d for d in able if d.settled], topology, room_cores)
        rest = [_item(d, topology, stay=False) for d in able if d.key not in base.placed]
        rest.sort(key=lambda item: (not item.demand.settled, *_hardest_first(item)))
        packing = _first_fit(rest, topology, replace(base, unplaced={}))
    return Packing(packing.placed, {**unable, **packing.unplaced}, packing.free_cores)


def fits(
    held: Iterable[Demand], asked: Iterable[Demand], topology: Topology, reserve_ratio: float = 0.0
) -> bool:
    """Whether a host that holds some bookings can take others as well."""
    return pack([*held, *asked], topology, reserve_ratio).complete
