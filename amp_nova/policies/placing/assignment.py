"""Seats: which vCPU is on which core type, and on which pCPU of it, until the next decision.

A policy says how strongly each vCPU claims each core type. There are as many seats as active vCPUs.
Every pCPU has about as many as it has time left by bookings; when there are fewer vCPUs than pCPUs,
the fastest pCPUs have them. From the fastest type down, the strongest claims take the seats; who
sits there already gives way only to a claim that is stronger by more than a threshold, and no more
vCPUs are moved than the view allows.

On a core type, whoever was on a pCPU stays on it. Newcomers take the seat that is nearest: not
beside a vCPU of the same instance if another seat is free, in the same last-level cache, on the
same NUMA node. Where pCPUs are not equally crowded, whoever lags behind in CPU time sits where it
is roomy.

With more vCPUs than pCPUs, a faster pCPU whose vCPUs sleep a good part of the time takes one more
from a slower one that is overloaded: it would idle while somebody waits there.

On a core type with bookings a vCPU may use all pCPUs of the type: the kernel moves booked vCPUs
among them, and best effort with them, out of the way and into what they do not use.

Cost: ``N log N`` for N vCPUs.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import PCpu
from amp_nova.policies.api import HostView, VcpuView

Claims = Mapping[VcpuKey, Sequence[float]]
"""How strongly each vCPU claims every core type, slowest first."""
_NEARLY_AS_ROOMY = 0.6
"""A faster pCPU is preferred to a roomier one, if a seat on it has this much of its time."""
SPARE_LEAST_CORES = 0.25
"""What a pCPU must have to spare, and a slower one lack, for a vCPU to change over."""
TIME_LEAST_CORES = 0.05
"""With less than this left by bookings nobody is kept on a pCPU."""
_NOISE = 1e-9


def seats(view: HostView, count: int) -> Counter[int]:
    """How many vCPUs each pCPU seats."""
    heaps: list[_Heap] = []
    for core_type in view.topology.core_types:
        ids = view.topology.pcpus_of(core_type.name)
        heap = [(-max(0.0, view.free_cores.get(p, 0.0)), p, 0) for p in ids]
        heapq.heapify(heap)
        heaps.append(heap)
    made: Counter[int] = Counter()
    for _ in range(count):
        heap = _next_seat([heap for heap in heaps if heap])
        has, pcpu, taken = heap[0]
        free = -has * (taken + 1)
        heapq.heapreplace(heap, (-free / (taken + 2), pcpu, taken + 1))
        made[pcpu] += 1
    return made


_Heap = list[tuple[float, int, int]]
"""pCPUs of one core type: less their time for one more vCPU, their id, and how many they have."""


def _next_seat(heaps: Sequence[_Heap]) -> _Heap:
    """The type of the next seat: the fastest that has an empty pCPU, else the roomiest.

    What is left over of even numbers crowds the slowest: so a seat on a faster type is the better
    one, which is what claims are about.
    """
    roomiest = max(-heap[0][0] for heap in heaps)
    for heap in reversed(heaps):
        has, _, taken = heap[0]
        if taken == 0 and -has >= _NEARLY_AS_ROOMY * roomiest:
            return heap
    return next(heap for heap in heaps if -heap[0][0] >= roomiest - _NOISE)


@dataclass(slots=True)
class Budget:
    """How many more vCPUs may change their core type."""

    moves: float

    def spend(self, moves: int) -> bool:
        """Whether there was enough left."""
        if moves > self.moves:
            return False
        self.moves -= moves
        return True


def choose(
    candidates: Sequence[VcpuKey],
    sitting: Collection[VcpuKey],
    count: int,
    claim: Mapping[VcpuKey, float],
    threshold: float,
    budget: Budget,
) -> list[VcpuKey]:
    """The ``count`` candidates with the strongest claims; of about equal ones those who sit."""
    order = sorted(candidates, key=lambda k: (-claim[k], k))
    inside = [k for k in order if k in sitting][:count]
    outside = [k for k in order if k not in sitting]
    free = count - len(inside)
    chosen, outside = outside[:free], outside[free:]
    for challenger in outside:
        if not inside or claim[challenger] - claim[inside[-1]] <= max(threshold, _NOISE):
            break
        if not budget.spend(2):
            break
        inside.pop()
        chosen.append(challenger)
    return inside + chosen


@dataclass(slots=True)
class _Seating:
    """The work of one decision on one host."""

    view: HostView
    vcpus: Mapping[VcpuKey, VcpuView]
    left: Counter[int]
    """Seats that are still free, by pCPU."""
    lag_s: Mapping[VcpuKey, float]
    pcpus: Mapping[int, PCpu] = field(init=False)
    on: dict[VcpuKey, int] = field(default_factory=dict)
    there: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Instances on every pCPU, with how many vCPUs."""

    def __post_init__(self) -> None:
        self.pcpus = {p.id: p for p in self.view.topology.pcpus}

    def sit(self, key: VcpuKey, pcpu: int) -> None:
        self.on[key] = pcpu
        self.there[pcpu][key[0]] += 1
        self.left[pcpu] -= 1

    def change(self, key: VcpuKey, pcpu: int) -> None:
        """Take one that has a seat to another pCPU, whether that has a free seat or not."""
        self.there[self.on[key]][key[0]] -= 1
        self.sit(key, pcpu)

    def type_seats(self, keys: Sequence[VcpuKey], ids: frozenset[int]) -> list[VcpuKey]:
        """Seat those who were chosen for a core type; returns those for whom none was free."""
        crowd = {p: self.left[p] for p in ids if self.left[p] > 0}
        rest = list(keys)
        for crowded in sorted(set(crowd.values())):
            here = {p for p, seats in crowd.items() if seats == crowded}
            able = [k for k in rest if self.vcpus[k].allowed & here]
            sitting = {k for k in able if _only(self.vcpus[k]) in here}
            count = sum(crowd[p] for p in here)
            unlimited = Budget(float("inf"))
            taken = choose(able, sitting, count, self.lag_s, 0.0, unlimited)
            rest = self._pcpu_seats(rest, set(taken), here)
        return rest

    def _pcpu_seats(
        self, keys: Sequence[VcpuKey], taken: set[VcpuKey], here: set[int]
    ) -> list[VcpuKey]:
        """Seat the ``taken`` ones of ``keys``; returns the others."""
        newcomers = []
        for key in sorted(taken):
            stays = _only(self.vcpus[key])
            if stays in here and self.left[stays] > 0 and not self.there[stays][key[0]]:
                self.sit(key, stays)
            else:
                newcomers.append(key)
        newcomers.sort(key=lambda k: (len(self.vcpus[k].allowed & here), k))
        by_place = _Nearest(self, here)
        missed = {k for k in newcomers if not by_place.seat(k)}
        return [k for k in keys if k not in taken or k in missed]

    def anywhere(self, key: VcpuKey) -> None:
        """Seat one for whom no seat was meant, where it is least crowded."""
        allowed = [p for p in self.vcpus[key].allowed if p in self.pcpus]

        def crowd(pcpu: int) -> tuple[float, bool, int]:
            others = sum(self.there[pcpu].values())
            free = max(1e-3, self.view.free_cores.get(pcpu, 0.0))
            return (others + 1) / free, pcpu != _only(self.vcpus[key]), pcpu

        self.sit(key, min(allowed, key=crowd))


def _fill(seating: _Seating, claims: Claims, ids: Sequence[frozenset[int]], budget: Budget) -> None:
    """Let faster pCPUs that have time to spare take vCPUs from slower ones that are overloaded."""
    over = {p: -max(0.0, seating.view.free_cores.get(p, 0.0)) for p in seating.pcpus}
    for key, pcpu in seating.on.items():
        over[pcpu] += _wanted_cores(seating.vcpus[key])
    position = {p: at for at, of_type in enumerate(ids) for p in of_type}
    spare = [p for p in sorted(over) if over[p] <= -SPARE_LEAST_CORES]
    for pcpu in sorted(spare, key=lambda p: -position[p]):
        at = position[pcpu]
        full = {p for p in over if position[p] < at and over[p] >= SPARE_LEAST_CORES}
        movable = [
            (-over[source], -claims[key][at], key)
            for key, source in seating.on.items()
            if source in full
            and pcpu in seating.vcpus[key].allowed
            and not seating.there[pcpu][key[0]]
            and over[pcpu] + _wanted_cores(seating.vcpus[key]) < over[source]
        ]
        if movable and budget.spend(1):
            *_, key = min(movable)
            over[seating.on[key]] -= _wanted_cores(seating.vcpus[key])
            over[pcpu] += _wanted_cores(seating.vcpus[key])
            seating.change(key, pcpu)


def _wanted_cores(vcpu: VcpuView) -> float:
    return 1.0 if vcpu.demand_ratio is None else vcpu.demand_ratio


class _Nearest:
    """Finds newcomers the nearest free seats among some pCPUs of one core type."""

    def __init__(self, seating: _Seating, here: Collection[int]) -> None:
        self._seating = seating
        self._free = sorted(p for p in here if seating.left[p] > 0)

    def seat(self, key: VcpuKey) -> bool:
        """Give it a seat, if one is free that it may use."""
        seating = self._seating
        vcpu = seating.vcpus[key]
        usable = [p for p in self._free if p in vcpu.allowed]
        if not usable:
            return False
        was = seating.pcpus.get(-1 if (at := _last(vcpu)) is None else at)
        pcpu = min(usable, key=lambda p: (seating.there[p][key[0]] > 0, *self._far(p, was), p))
        seating.sit(key, pcpu)
        if seating.left[pcpu] <= 0:
            self._free.remove(pcpu)
        return True

    def _far(self, pcpu: int, was: PCpu | None) -> tuple[bool, bool, bool]:
        to = self._seating.pcpus[pcpu]
        if was is None:
            return False, False, False
        return to.id != was.id, to.llc != was.llc, to.numa_node != was.numa_node


def _only(vcpu: VcpuView) -> int:
    """The one pCPU it is kept on, -1 when it is on none or may use several."""
    return next(iter(vcpu.pcpus)) if len(vcpu.pcpus) == 1 else -1


def _last(vcpu: VcpuView) -> int | None:
    return _only(vcpu) if len(vcpu.pcpus) == 1 else vcpu.last_pcpu


def place(
    view: HostView,
    claims: Claims,
    lag_s: Mapping[VcpuKey, float],
    threshold: float = 0.0,
) -> dict[VcpuKey, frozenset[int]]:
    """Places for every vCPU that has claims; ``lag_s``: CPU time each is behind the others."""
    vcpus = {v.key: v for v in view.vcpus if v.key in claims}
    types = view.topology.core_types
    ids = [view.topology.pcpus_of(t.name) for t in types]
    now = {k: view.topology.only_type(v.pcpus) for k, v in vcpus.items()}
    free = seats(view, len(vcpus))
    seating = _Seating(view, vcpus, Counter(free), {k: lag_s.get(k, 0.0) for k in vcpus})
    budget = Budget(float("inf") if view.moves_max is None else view.moves_max)
    waiting = sorted(vcpus)
    places = {}
    for at in reversed(range(len(types))):
        able = [k for k in waiting if vcpus[k].allowed & ids[at]]
        bound = {k for k in able if not any(vcpus[k].allowed & slower for slower in ids[:at])}
        sitting = {k for k in able if now[k] is types[at]}
        # Who has no other choice has the strongest claim.
        claim = {k: float("inf") if k in bound else claims[k][at] for k in able}
        count = sum(free[p] for p in ids[at])
        chosen = choose(able, sitting, count, claim, threshold, budget)
        missed = seating.type_seats(chosen, ids[at])
        seated = set(chosen) - set(missed)
        waiting = [k for k in waiting if k not in seated]
    for key in waiting:
        seating.anywhere(key)
    _fill(seating, claims, ids, budget)
    for key, pcpu in seating.on.items():
        places[key] = affinity(view, vcpus[key], pcpu)
    return places


def affinity(view: HostView, vcpu: VcpuView, pcpu: int) -> frozenset[int]:
    """The pCPUs to be kept on: a seat's one, or all of its type where there are bookings on it."""
    core_type = view.topology.type_of(pcpu)
    ids = frozenset({pcpu}) if core_type is None else view.topology.pcpus_of(core_type.name)
    booked = ids & view.booked or any(view.free_cores.get(p, 0.0) < 1.0 - _NOISE for p in ids)
    return ids & vcpu.allowed if booked else frozenset({pcpu})


def has_time(view: HostView, pcpu: int) -> bool:
    """Whether bookings leave anything of a pCPU."""
    return view.free_cores.get(pcpu, 0.0) >= TIME_LEAST_CORES
