"""Bin packing: which pCPU each booked vCPU goes to, and whether all of them fit a host.

A vCPU that books ``b`` reference cores needs ``b / coef(type)`` of one pCPU, of a type with
``coef >= b`` (teabe2017, section 3.1). A vCPU that books instructions per second needs
``ips / nominal_ips(type)``. A set of bookings fits a host if and only if it can be packed with no
pCPU filled above 1 minus the operator's reserve. Nova's filter, the agent and the simulator all
call ``pack``, so they agree.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import CoreType, Topology

_NOTHING: Mapping[Any, Any] = MappingProxyType({})
SEARCH_STEPS_MAX = 200
"""Search effort when first fit fails, in states beyond one per vCPU: 20 ms on 64 full pCPUs."""
SEARCH_ITEMS_MAX = 300
"""With more vCPUs than this there is no search: first fit comes close enough."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One booked vCPU to be packed. The text of ``key`` identifies it and breaks ties.

    ``refcores``: what it books; for a booking in Ips, ``least_refcores``. ``allowed``: the pCPUs
    that Nova and libvirt permit. ``core_type``: the type its flavor requires.
    ``current``: the core type it is kept on now; ``pcpu``: the pCPU, if it is kept on a single one.
    ``admitted``: it has a place, which no later demand may take.
    """

    key: Hashable
    refcores: float
    allowed: frozenset[int]
    core_type: str | None = None
    current: str | None = None
    pcpu: int | None = None
    admitted: bool = False
    coefficients: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    """Its own coefficient by core type, where it differs from the type's."""
    ips: float | None = None
    packed: int | None = None
    """The pCPU it was last packed onto, whether or not it is kept there."""

    @property
    def amount(self) -> str:
        """The booking in words, with its unit."""
        if self.ips is not None:
            return f"{self.ips:.4g} instructions per second"
        return f"{self.refcores:g} reference cores"


def cores(refcores: float, core_type: CoreType) -> float | None:
    """Share of one pCPU of this type worth ``refcores``; ``None`` if it has no coefficient."""
    return None if core_type.coefficient is None else refcores / core_type.coefficient


def need_cores(demand: Demand, core_type: CoreType) -> float | None:
    """Share of one pCPU of this type that a vCPU needs; ``None`` if the type is not calibrated."""
    if demand.ips is not None:
        return None if core_type.nominal_ips is None else demand.ips / core_type.nominal_ips
    own = demand.coefficients.get(core_type.name)
    if own is None or core_type.coefficient is None:
        return cores(demand.refcores, core_type)
    return demand.refcores / own


def least_refcores(ips: float, topology: Topology) -> float | None:
    """The least that a booking in Ips is worth in reference cores, over all core types.

    ``None`` if no core type has nominal Ips.
    """
    worth = [
        ips / t.nominal_ips * (t.coefficient or 1.0)
        for t in topology.core_types
        if t.nominal_ips is not None
    ]
    return min(worth, default=None)


@dataclass(frozen=True, slots=True)
class Packing:
    """The pCPU of each booked vCPU, or the reason why it has none, and what is left of each pCPU.

    ``most_cores`` and ``unbooked_cores`` are filled in by ``control.entitlement`` with the results
    of ``admission.headroom``.
    """

    placed: Mapping[Hashable, int]
    unplaced: Mapping[Hashable, str]
    free_cores: Mapping[int, float]
    most_cores: Mapping[Hashable, float] = field(default_factory=lambda: _NOTHING)
    """The most that vCPUs with a soft limit or a burst may use, in cores."""
    unbooked_cores: Mapping[Hashable, Mapping[str, float]] = field(default_factory=lambda: _NOTHING)
    """The most that vCPUs without a booking may use by core type, outside the idle class."""

    @property
    def complete(self) -> bool:
        """Whether every vCPU has a place."""
        return not self.unplaced


@dataclass(frozen=True, slots=True)
class _Item:
    """A demand with its options in order of preference: the share it needs, and the pCPUs."""

    demand: Demand
    options: tuple[tuple[float, frozenset[int]], ...]

    def places(self, free: Mapping[int, float]) -> Iterator[tuple[int, float]]:
        """pCPUs that can hold it, each with the share it needs; its own first, then the fullest."""
        for need, pcpus in self.options:
            found = [p for p in pcpus if free[p] >= need - TOLERANCE]
            for pcpu in sorted(found, key=lambda p: (p != self.demand.pcpu, free[p], p)):
                yield pcpu, need


def _item(demand: Demand, topology: Topology, *, stay: bool = False) -> _Item:
    """Prefers the current core type (with ``stay``: only that), then the slowest that suffices."""
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
    if _item(demand, topology).options:
        return f"{demand.amount} are not free on any pCPU it may use"
    if not any(topology.type_of(p) for p in demand.allowed):
        return "none of the pCPUs it may use is online"
    where = f"core type {demand.core_type}" if demand.core_type else "any core type it may use"
    return f"{demand.amount} per vCPU are more than {where} can give"


def _hardest_first(item: _Item) -> tuple[Any, ...]:
    # Newcomers come last among equals. The scheduler asks before they have a name, so the name
    # must not decide between a newcomer and the others.
    demand = item.demand
    return len(demand.allowed), -demand.refcores, demand.current is None, str(demand.key)


def _kept_first(item: _Item) -> tuple[Any, ...]:
    return item.demand.pcpu is None, item.demand.current is None, *_hardest_first(item)


def _first_fit(items: Iterable[_Item], topology: Topology, base: Packing) -> Packing:
    """Add items to ``base`` one by one, each to its preferred place."""
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


def _search(items: Sequence[_Item], topology: Topology, empty: Packing) -> Packing | None:
    """Place all items by depth-first search; ``None`` if impossible or not found in time.

    Of pCPUs with equal free capacity that are options of the same vCPUs, one is tried. A state that
    failed is not entered again.
    """
    free = dict(empty.free_cores)
    worth = sum((t.coefficient or 0.0) * free[p] for p in free if (t := topology.type_of(p)))
    needed = sum(item.demand.refcores for item in items)
    if len(items) > SEARCH_ITEMS_MAX or needed > worth + TOLERANCE * len(items):
        return None
    groups = {pcpus for item in items for _, pcpus in item.options}
    kind = {p: tuple(p in group for group in groups) for p in free}
    placed: dict[Hashable, int] = {}
    dead_ends: set[object] = set()
    steps = len(items) + SEARCH_STEPS_MAX

    def place_from(at: int) -> bool:
        nonlocal steps
        if at == len(items):
            return True
        like = {p: (kind[p], round(left, 9)) for p, left in free.items()}
        state = (at, tuple(sorted(like.values())))
        steps -= 1
        if steps < 0 or state in dead_ends:
            return False
        tried = set()
        for pcpu, need in list(items[at].places(free)):
            if like[pcpu] in tried:
                continue
            tried.add(like[pcpu])
            left = free[pcpu]
            free[pcpu] = left - need
            if place_from(at + 1):
                placed[items[at].demand.key] = pcpu
                return True
            free[pcpu] = left
        dead_ends.add(state)
        return False

    return Packing(placed, {}, free) if place_from(0) else None


def _attempts(demands: Sequence[Demand], topology: Topology, empty: Packing) -> Iterator[Packing]:
    """Packings, from one that moves nothing to one that moves whatever it must."""
    moving = any(d.current is not None for d in demands)
    for stay in (True, False) if moving else (False,):
        items = sorted((_item(d, topology, stay=stay) for d in demands), key=_hardest_first)
        yield _first_fit(sorted(items, key=_kept_first) if stay else items, topology, empty)
        if stay:
            # All on the pCPUs they were packed onto, newcomers beside: what the scheduler tries
            # first.
            packed = [d if d.packed is None else replace(d, pcpu=d.packed) for d in demands]
            again = sorted((_item(d, topology, stay=True) for d in packed), key=_kept_first)
            yield _first_fit(again, topology, empty)
        if (found := _search(items, topology, empty)) is not None:
            yield found


def _best_attempt(demands: Sequence[Demand], topology: Topology, empty: Packing) -> Packing:
    """The first attempt that places all demands, otherwise the one that moves nothing."""
    attempts = _attempts(demands, topology, empty)
    first = next(attempts)
    return next((packing for packing in chain([first], attempts) if packing.complete), first)


def pack(demands: Iterable[Demand], topology: Topology, reserve_ratio: float = 0.0) -> Packing:
    """Pack booked vCPUs onto pCPUs; a vCPU changes its core type only if not all fit otherwise.

    If not all fit, admitted demands keep a place, where they are if possible, and the others get
    what is left. Demands that cannot fit even an empty host are left out. The result does not
    depend on the order of ``demands``.
    """
    empty = Packing({}, {}, {p.id: 1.0 - reserve_ratio for p in topology.pcpus})
    able: list[Demand] = []
    unable = {}
    for demand in demands:
        if next(_item(demand, topology).places(empty.free_cores), None) is not None:
            able.append(demand)
        else:
            unable[demand.key] = _reason(demand, topology)
    packing = _best_attempt(able, topology, empty)
    if not packing.complete:
        base = _best_attempt([d for d in able if d.admitted], topology, empty)
        others = [_item(d, topology) for d in able if d.key not in base.placed]
        others.sort(key=lambda item: (not item.demand.admitted, *_hardest_first(item)))
        packing = _first_fit(others, topology, replace(base, unplaced={}))
    return Packing(packing.placed, {**unable, **packing.unplaced}, packing.free_cores)
