# SPDX-License-Identifier: Apache-2.0
"""Bin packing: which pCPU each booked vCPU goes to, and whether all of them fit a host.

A vCPU that books ``b`` reference cores needs ``b / coef(type)`` of one pCPU, of a type with
``coef >= b`` (teabe2017, section 3.1). A vCPU that books instructions per second needs
``ips / nominal_ips(type)``. On core types where busy siblings cost speed, it needs more, or a whole
core (``admission.free_cores``). A set of bookings fits a host if and only if it can be packed with
no pCPU filled above 1 minus the operator's reserve. Nova's filter, the agent and the simulator all
call ``pack``, so they agree. A vCPU that needs more than that, up to a whole pCPU, gets one without
other bookings. Where guests cannot span core types (``Topology.one_type``), all vCPUs of a guest go
to the same one, and do not leave it.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from msgspec import Struct, structs

from amp_nova.admission import free_cores
from amp_nova.admission.free_cores import FreeCores, Option
from amp_nova.hardware.effective_speed import kept_ratio
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import CoreType, Topology

_NOTHING: Mapping[Any, Any] = MappingProxyType({})
SEARCH_STEPS_MAX = 200
"""Limit of the search when first fit fails: states beyond one per vCPU. 20 ms on 64 full pCPUs."""
AGENT_STEPS_MAX = 1000
"""The same for the agent, which sees guests that arrived together in another order than the
scheduler packed them, and has to find places for them as well. It packs only what changed."""
SEARCH_ITEMS_MAX = 300
"""With more vCPUs than this there is no search: first fit is close enough to the optimum."""


class Demand(Struct, frozen=True):
    """One booked vCPU to be packed. The text of ``key`` identifies it and breaks ties.

    A booking says what a vCPU may use; a demand adds where, and what it has there now.
    ``refcores``: what it books; for a booking in Ips, ``least_refcores``. ``allowed``: the pCPUs
    that Nova and libvirt permit. ``core_type``: the type its flavor requires. ``current``: the core
    type its affinity lies in now. ``admitted``: it has been placed before, and no later demand may
    take that capacity.
    """

    key: Hashable
    refcores: float
    allowed: frozenset[int]
    core_type: str | None = None
    current: str | None = None
    admitted: bool = False
    coefficients: Mapping[str, float] = _NOTHING
    """Its own coefficients by core type; a type that is missing has its usual coefficient."""
    ips: float | None = None
    packed: int | None = None
    """The pCPU it was last packed onto, whether or not its affinity is limited to that pCPU."""

    @property
    def amount(self) -> str:
        """The booking in words, with its unit."""
        if self.ips is not None:
            return f"{self.ips:.4g} instructions per second"
        return f"{self.refcores:g} reference core{'' if self.refcores == 1.0 else 's'}"


def cores(refcores: float, core_type: CoreType) -> float | None:
    """Share of one pCPU of this type worth ``refcores``; ``None`` if it has no coefficient."""
    return None if core_type.coefficient is None else refcores / core_type.coefficient


def need_cores(demand: Demand, core_type: CoreType) -> float | None:
    """Share of one pCPU of this type that a vCPU needs while its siblings are idle.

    ``None`` if the type is not calibrated.
    """
    if demand.ips is not None:
        return None if core_type.nominal_ips is None else demand.ips / core_type.nominal_ips
    own = demand.coefficients.get(core_type.name)
    if own is None or core_type.coefficient is None:
        return cores(demand.refcores, core_type)
    return demand.refcores / own


def shared_cores(alone_cores: float, core_type: CoreType) -> float:
    """The share that ``alone_cores`` becomes while siblings are busy.

    Infinite if only one thread of a core may be booked.
    """
    kept = kept_ratio(core_type.smt_busy_factor, 1.0)
    return alone_cores / kept if kept > 0.0 else math.inf


def least_refcores(ips: float, topology: Topology) -> float | None:
    """What a booking in Ips is worth in reference cores, on the core type where that is least.

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
    """The pCPU of each booked vCPU, or the reason why it has none, and what is free.

    ``needs``: the share of its pCPU that each takes. ``most_cores`` and ``unbooked_cores`` are
    filled in by ``control.homes`` with the results of ``admission.headroom``.
    """

    free: FreeCores
    placed: dict[Hashable, int] = field(default_factory=dict)
    needs: dict[Hashable, float] = field(default_factory=dict)
    unplaced: dict[Hashable, str] = field(default_factory=dict)
    most_cores: Mapping[Hashable, float] = field(default_factory=lambda: _NOTHING)
    """The most that each vCPU with a soft limit or a burst may use, in cores."""
    unbooked_cores: Mapping[Hashable, Mapping[str, float]] = field(default_factory=lambda: _NOTHING)
    """The most that vCPUs without a booking in an instance with one may use: cores by core type."""

    @property
    def complete(self) -> bool:
        """Whether every vCPU has a place."""
        return not self.unplaced

    @property
    def free_cores(self) -> Mapping[int, float]:
        """The free share of each pCPU."""
        return self.free.cores

    @property
    def whole(self) -> Set[int]:
        """pCPUs whose siblings are kept free."""
        return self.free.whole


def _option(demand: Demand, core_type: CoreType, pcpus: frozenset[int]) -> Option | None:
    """What a demand takes of one of these pCPUs of a core type; ``None`` if it may not be there."""
    need = need_cores(demand, core_type)
    if need is None or need > 1.0 + TOLERANCE or demand.core_type not in (None, core_type.name):
        return None
    return Option(need, shared_cores(need, core_type), pcpus) if pcpus else None


def _options(demand: Demand, topology: Topology, *, stay: bool = False) -> list[Option]:
    """The current core type first (with ``stay``: alone), then the others, slowest first."""
    options: list[Option] = []
    for core_type in topology.core_types:
        pcpus = demand.allowed & topology.pcpus_of(core_type.name)
        if (option := _option(demand, core_type, pcpus)) is None:
            continue
        if core_type.name != demand.current:
            options.append(option)
        elif stay:
            return [option]
        else:
            options.insert(0, option)
    return options


def _places(
    demand: Demand, options: Iterable[Option], free: FreeCores
) -> Iterator[tuple[int, Option]]:
    """pCPUs that can hold it: its own first, then shared cores, the fullest, and used cores."""
    own, cores, siblings = demand.packed, free.cores, free.siblings.get
    for option in options:
        if not free.siblings:
            enough = free.bookable(option.alone) - TOLERANCE
            pcpus = [p for p in option.pcpus if cores[p] >= enough]
            pcpus.sort(key=lambda p: (p != own, cores[p], p))
        else:
            opens, unbooked = partial(free.opens, option), free.unbooked
            pcpus = [p for p in option.pcpus if free.fits(option, p)]
            pcpus.sort(key=lambda p: (p != own, opens(p), cores[p], unbooked(siblings(p, ())), p))
        for pcpu in pcpus:
            yield pcpu, option


def _reason(demand: Demand, topology: Topology) -> str:
    if _options(demand, topology):
        return f"no pCPU that it may use has {demand.amount} free"
    if not any(topology.type_of(p) for p in demand.allowed):
        return "it may use none of the online pCPUs"
    if demand.core_type:
        return f"core type {demand.core_type} cannot give {demand.amount} per vCPU"
    return f"no core type that it may use can give {demand.amount} per vCPU"


def _hardest_first(demand: Demand) -> tuple[Any, ...]:
    return len(demand.allowed), *_largest_first(demand)


def _largest_first(demand: Demand) -> tuple[Any, ...]:
    # Among equals, newcomers come last. The scheduler packs a newcomer before it has a name, so
    # names must not decide between a newcomer and the rest.
    return -demand.refcores, demand.current is None, str(demand.key)


def place(
    demands: Iterable[Demand],
    topology: Topology,
    free: FreeCores,
    order: Callable[[Demand], tuple[Any, ...]] = _hardest_first,
    *,
    stay: bool = False,
) -> Packing:
    """Put vCPUs one by one beside what has been placed already; ``free`` stays as it is."""
    ordered = sorted(demands, key=order)
    if topology.one_type:
        return _place_guests(ordered, topology, free)
    return _place(ordered, topology, free, stay=stay)


def _place_guests(demands: Iterable[Demand], topology: Topology, free: FreeCores) -> Packing:
    """Put guests one by one onto the first core type that holds all their vCPUs.

    If there is none, the fastest type gets as many of them as it holds.
    """
    guests: dict[object, list[Demand]] = {}
    for demand in demands:
        guests.setdefault(guest_of(demand.key), []).append(demand)
    made = Packing(free.copy())
    for vcpus in guests.values():
        fixed = [d.core_type for d in vcpus if d.core_type is not None][:1]
        for name in fixed or [t.name for t in topology.core_types]:
            there = [structs.replace(d, core_type=name) for d in vcpus]
            tried = _place(there, topology, made.free)
            if tried.complete:
                break
        made.placed.update(tried.placed)
        made.unplaced.update(
            {d.key: _reason(d, topology) for d in vcpus if d.key in tried.unplaced}
        )
        made = replace(made, free=tried.free)
    return made


def guest_of(key: Hashable) -> Hashable:
    """What the keys of all demands of one guest have in common."""
    return key[0] if isinstance(key, tuple) else key


def _place(
    demands: Iterable[Demand], topology: Topology, free: FreeCores, *, stay: bool = False
) -> Packing:
    made = Packing(free.copy())
    for demand in demands:
        options = _options(demand, topology, stay=stay)
        found = next(_places(demand, options, made.free), None)
        if found is None:
            made.unplaced[demand.key] = _reason(demand, topology)
        else:
            made.placed[demand.key], option = found
            made.free.take(option, found[0])
    return made


def _search(
    items: Sequence[tuple[Demand, list[Option]]],
    topology: Topology,
    empty: FreeCores,
    steps_max: int,
) -> Packing | None:
    """Place all of them by depth-first search; ``None`` if impossible or beyond the search limit.

    Of pCPUs with equal free capacity that are options of the same vCPUs, only one is tried. A state
    that failed is not entered again.
    """
    # Without the reserve: alone on a pCPU, a vCPU may book that too.
    worth = sum(t.coefficient or 0.0 for p in empty.cores if (t := topology.type_of(p)))
    needed = sum(demand.refcores for demand, _ in items)
    if len(items) > SEARCH_ITEMS_MAX or needed > worth + TOLERANCE * len(items):
        return None
    groups = {option.pcpus for _, options in items for option in options}
    kinds = {p: tuple(p in group for group in groups) for p in empty.cores}
    dead_ends: set[object] = set()
    steps = len(items) + steps_max

    def place_from(at: int, free: FreeCores) -> Packing | None:
        nonlocal steps
        if at == len(items):
            return Packing(free)
        like = free.alike(kinds)
        state = (at, tuple(sorted(like.values())))
        steps -= 1
        if steps < 0 or state in dead_ends:
            return None
        tried = set()
        for pcpu, option in list(_places(*items[at], free)):
            if like[pcpu] in tried:
                continue
            tried.add(like[pcpu])
            after = free.copy()
            after.take(option, pcpu)
            if (packing := place_from(at + 1, after)) is not None:
                packing.placed[items[at][0].key] = pcpu
                return packing
        dead_ends.add(state)
        return None

    return place_from(0, empty)


def replay(
    demands: Iterable[Demand], topology: Topology, free: FreeCores, left_max: float = math.inf
) -> tuple[Packing, list[Demand]]:
    """Put vCPUs back onto the pCPUs they were packed onto; ``free`` stays as it is.

    Also gives those that have no place yet, or no longer fit theirs. These are left to ``place``.
    """
    made, left = Packing(free.copy()), list[Demand]()
    for demand in demands:
        pcpu, option = demand.packed, None
        if pcpu in demand.allowed and (core_type := topology.type_of(pcpu)) is not None:
            option = _option(demand, core_type, demand.allowed)
        if pcpu is None or option is None or not made.free.fits(option, pcpu):
            if len(left) <= left_max:  # one more says that they are too many
                left.append(demand)
        else:
            made.free.take(option, pcpu)
            made.placed[demand.key] = pcpu
    return made, left


def _on_its_type(demand: Demand, topology: Topology) -> Demand:
    """The demand of a vCPU that cannot leave the core type it is on."""
    there = None if demand.packed is None else topology.type_of(demand.packed)
    name = demand.core_type or demand.current or (there.name if there else None)
    return structs.replace(demand, core_type=name)


def _attempts(
    demands: Sequence[Demand], topology: Topology, empty: FreeCores, steps_max: int
) -> Iterator[Packing]:
    """Packings to try: first without moves to another core type, then with them.

    Each time the last packing with the rest beside it, then all of them anew.
    """
    replayed, left = replay(demands, topology, empty)
    for stay, order in ((True, _hardest_first), (False, _largest_first)):
        made = place(left, topology, replayed.free, order, stay=stay)
        made.placed.update(replayed.placed)
        yield made
        yield place(demands, topology, empty, order, stay=stay)
        items = [(d, _options(d, topology, stay=stay)) for d in sorted(demands, key=order)]
        if topology.one_type:
            continue
        if (packing := _search(items, topology, empty, steps_max)) is not None:
            yield packing


def _best_attempt(
    demands: Sequence[Demand], topology: Topology, empty: FreeCores, steps_max: int
) -> Packing:
    """The first attempt that places all demands; if none does, the first attempt."""
    attempts = _attempts(demands, topology, empty, steps_max)
    first = next(attempts)
    return next((made for made in chain([first], attempts) if not made.unplaced), first)


def pack(
    demands: Iterable[Demand],
    topology: Topology,
    reserve_ratio: float = 0.0,
    steps_max: int = SEARCH_STEPS_MAX,
) -> Packing:
    """Pack booked vCPUs onto pCPUs: each where it was packed before, and newcomers beside them.

    vCPUs are packed anew only if not all of them fit otherwise, and change core type only if they
    do not fit then either. If not all fit, admitted demands keep a place, if possible where they
    are, and the others get what is left. A demand that would not fit an empty host is left
    unplaced. The result does not depend on the order of ``demands``.
    """
    empty = free_cores.empty(topology, reserve_ratio)
    if topology.one_type:
        demands = [_on_its_type(d, topology) for d in demands]
    demands = sorted(demands, key=_hardest_first)
    able = [d for d in demands if any(_places(d, _options(d, topology), empty))]
    made = _best_attempt(able, topology, empty, steps_max)
    if made.unplaced:
        base = _best_attempt([d for d in able if d.admitted], topology, empty, steps_max)
        others = [d for d in able if d.key not in base.placed]
        made = place(others, topology, base.free, lambda d: (not d.admitted, *_hardest_first(d)))
        made.placed.update(base.placed)
    for demand in demands:
        pcpu = made.placed.get(demand.key)
        if pcpu is None or (core_type := topology.type_of(pcpu)) is None:
            made.unplaced[demand.key] = _reason(demand, topology)
        elif (option := _option(demand, core_type, demand.allowed)) is not None:
            made.needs[demand.key] = made.free.share(option, pcpu)
    return made
