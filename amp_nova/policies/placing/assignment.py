"""Assignment: the core type, and the pCPU of that type, that each vCPU has for one interval.

A policy says how strongly each vCPU claims each core type. This module turns claims into pCPUs:

1. Each active vCPU gets one place; ``places`` says how many each pCPU offers.
2. From the fastest core type down, the strongest claims win the places. An incumbent, a vCPU that
   is on the type already, loses its place only to a claim that is stronger by more than a
   threshold, and only while the view's ``moves_max`` allows it.
3. Within a core type a vCPU keeps its pCPU. A newcomer takes the nearest free place, preferably
   not beside a vCPU of its own instance, then in the same last-level cache, then on the same NUMA
   node. If pCPUs are not equally crowded, the vCPUs that lag furthest behind in CPU time get the
   least crowded ones.
4. With more vCPUs than pCPUs, a faster pCPU whose vCPUs sleep part of the time takes one more vCPU
   from an overloaded slower pCPU. Otherwise it would idle while a vCPU waits.

On a core type with bookings a vCPU may use all pCPUs of the type: the kernel moves booked vCPUs
among them, so best-effort vCPUs must be free to get out of the way and to use idle bookings.

Cost: ``N log N`` for N vCPUs.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import PCpu
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.core_shares import SharedCapacity

Claims = Mapping[VcpuKey, Sequence[float]]
"""How strongly each vCPU claims each core type, slowest type first, in the policy's own unit."""
SPARE_MIN_CORES = 0.25
"""A vCPU changes pCPUs only if one has this much time to spare and the other lacks this much."""
TIME_MIN_CORES = 0.05
"""A pCPU to which bookings leave less than this is not used."""
_NOISE = 1e-9


@dataclass(slots=True)
class MoveAllowance:
    """How many more vCPUs may change their core type in this decision."""

    left: float

    def take(self, moves: int) -> bool:
        """Use up ``moves`` if that many are left; returns whether they were."""
        if moves > self.left:
            return False
        self.left -= moves
        return True


def _winners(
    claims: Mapping[VcpuKey, float],
    incumbents: Collection[VcpuKey],
    count: int,
    threshold: float,
    allowance: MoveAllowance,
) -> list[VcpuKey]:
    """The ``count`` strongest claims; incumbents win if claims differ by ``threshold`` or less.

    ``claims`` in the order of keys: of equal ones the first wins. Replacing an incumbent takes two
    moves: it leaves the core type and the challenger enters it.
    """
    if len(claims) <= count:
        return list(claims)
    order = sorted(claims, key=claims.__getitem__, reverse=True)
    inside = [k for k in order if k in incumbents][:count]
    outside = [k for k in order if k not in incumbents]
    free = count - len(inside)
    won, challengers = outside[:free], outside[free:]
    for challenger in challengers:
        if not inside or claims[challenger] - claims[inside[-1]] <= max(threshold, _NOISE):
            break
        if not allowance.take(2):
            break
        inside.pop()
        won.append(challenger)
    return inside + won


@dataclass(slots=True)
class _Assignment:
    """The pCPU of each vCPU that this decision has assigned so far."""

    view: HostView
    vcpus: Mapping[VcpuKey, VcpuView]
    free: Counter[int]
    """Places left on each pCPU."""
    lag_s: Mapping[VcpuKey, float]
    pcpus: Mapping[int, PCpu] = field(init=False)
    pcpu_of: dict[VcpuKey, int] = field(default_factory=dict)
    instances: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The instance of every vCPU on each pCPU."""

    def __post_init__(self) -> None:
        self.pcpus = {p.id: p for p in self.view.topology.pcpus}

    def put(self, key: VcpuKey, pcpu: int) -> None:
        """Put a vCPU on a pCPU, whether a place is free or not, and take it off its old one."""
        if (old := self.pcpu_of.get(key)) is not None:
            self.instances[old].remove(key[0])
        self.pcpu_of[key] = pcpu
        self.instances[pcpu].append(key[0])
        self.free[pcpu] -= 1

    def fill_type(self, keys: Sequence[VcpuKey], ids: frozenset[int]) -> None:
        """Put the vCPUs that won a core type on its pCPUs, if a place that they may use is free."""
        places = {p: self.free[p] for p in ids if self.free[p] > 0}
        waiting = sorted(keys)
        for crowding in sorted(set(places.values())):
            here = {p for p, count in places.items() if count == crowding}
            won = [k for k in waiting if not here.isdisjoint(self.vcpus[k].allowed)]
            if len(won) > (count := crowding * len(here)):
                incumbents = {k for k in won if _pinned_to(self.vcpus[k]) in here}
                lag_s, unlimited = {k: self.lag_s[k] for k in won}, MoveAllowance(float("inf"))
                won = _winners(lag_s, incumbents, count, 0.0, unlimited)
            self._fill_pcpus(won, here)
            waiting = [k for k in waiting if k not in self.pcpu_of]

    def _fill_pcpus(self, keys: Sequence[VcpuKey], here: set[int]) -> None:
        newcomers = []
        for key in sorted(keys):
            pcpu = _pinned_to(self.vcpus[key])
            if pcpu in here and self.free[pcpu] > 0 and key[0] not in self.instances[pcpu]:
                self.put(key, pcpu)
            else:
                newcomers.append(key)
        if not newcomers:
            return
        near = _Near(self.pcpus[p] for p in sorted(here))
        for key in sorted(newcomers, key=lambda k: (len(self.vcpus[k].allowed & here), k)):
            if (nearest := self._nearest(key, near)) is not None:
                self.put(key, nearest)

    def _nearest(self, key: VcpuKey, near: "_Near") -> int | None:
        """The nearest pCPU with a free place, preferably without a vCPU of the same instance."""
        vcpu = self.vcpus[key]
        at = vcpu.last_pcpu if len(vcpu.pcpus) != 1 else _pinned_to(vcpu)
        last = None if at is None else self.pcpus.get(at)
        beside = None
        for pcpu in near.to(last):
            if self.free[pcpu] > 0 and pcpu in vcpu.allowed:
                if key[0] not in self.instances[pcpu]:
                    return pcpu
                beside = pcpu if beside is None else beside
        return beside

    def put_anywhere(self, key: VcpuKey) -> None:
        """Put a vCPU for which no place is left on the least crowded pCPU that it may use."""
        allowed = [p for p in self.vcpus[key].allowed if p in self.pcpus]

        def crowding(pcpu: int) -> tuple[float, bool, int]:
            others = len(self.instances[pcpu])
            free = max(1e-3, self.view.free_cores.get(pcpu, 0.0))
            return (others + 1) / free, pcpu != _pinned_to(self.vcpus[key]), pcpu

        self.put(key, min(allowed, key=crowding))

    def use_spare_time(
        self, claims: Claims, ids: Sequence[frozenset[int]], allowance: MoveAllowance
    ) -> None:
        """Let faster pCPUs with time to spare take vCPUs from overloaded slower ones."""
        excess = {p: -max(0.0, self.view.free_cores.get(p, 0.0)) for p in self.pcpus}
        for key, pcpu in self.pcpu_of.items():
            excess[pcpu] += _demand_cores(self.vcpus[key])
        spare = [p for p in sorted(excess) if excess[p] <= -SPARE_MIN_CORES]
        position = {p: at for at, of_type in enumerate(ids) for p in of_type} if spare else {}
        for pcpu in sorted(spare, key=lambda p: -position[p]):
            at = position[pcpu]
            full = {p for p in excess if position[p] < at and excess[p] >= SPARE_MIN_CORES}
            movable = [
                (-excess[source], -claims[key][at], key)
                for key, source in self.pcpu_of.items()
                if source in full
                and pcpu in self.vcpus[key].allowed
                and key[0] not in self.instances[pcpu]
                and excess[pcpu] + _demand_cores(self.vcpus[key]) < excess[source]
            ]
            if movable and allowance.take(1):
                *_, key = min(movable)
                excess[self.pcpu_of[key]] -= _demand_cores(self.vcpus[key])
                excess[pcpu] += _demand_cores(self.vcpus[key])
                self.put(key, pcpu)


class _Near:
    """Some pCPUs by their distance from another one."""

    def __init__(self, pcpus: Iterable[PCpu]) -> None:
        """``pcpus`` in order of id."""
        self._all: list[int] = []
        self._by_llc: defaultdict[int | None, list[int]] = defaultdict(list)
        self._by_node: defaultdict[int | None, list[int]] = defaultdict(list)
        for pcpu in pcpus:
            self._all.append(pcpu.id)
            self._by_llc[pcpu.llc].append(pcpu.id)
            self._by_node[pcpu.numa_node].append(pcpu.id)

    def to(self, last: PCpu | None) -> Iterator[int]:
        """All the pCPUs, nearest first; some are repeated further on."""
        if last is not None:
            if last.id in self._by_llc[last.llc]:
                yield last.id
            yield from self._by_llc[last.llc]
            yield from self._by_node[last.numa_node]
        yield from self._all


def _demand_cores(vcpu: VcpuView) -> float:
    return 1.0 if vcpu.demand_ratio is None else vcpu.demand_ratio


def _pinned_to(vcpu: VcpuView) -> int:
    """The one pCPU that a vCPU is kept on; -1 if it may use several or none."""
    return next(iter(vcpu.pcpus)) if len(vcpu.pcpus) == 1 else -1


def assign(
    view: HostView,
    shared: SharedCapacity,
    claims: Claims,
    lag_s: Mapping[VcpuKey, float],
    threshold: float = 0.0,
) -> dict[VcpuKey, frozenset[int]]:
    """The pCPUs of every active vCPU.

    ``lag_s``: CPU seconds that each vCPU is behind an equal share. ``threshold``: by how much a
    claim must exceed an incumbent's to take its place.
    """
    vcpus = {v.key: v for v in shared.vcpus}
    types, usable, places = view.topology.core_types, shared.types, shared.places
    ids = [view.topology.pcpus_of(t.name) for t in types]
    now = {k: view.topology.position(v.pcpus) for k, v in vcpus.items()}
    assignment = _Assignment(view, vcpus, Counter(places), lag_s)
    allowance = MoveAllowance(float("inf") if view.moves_max is None else view.moves_max)
    slowest = {k: min(usable[k]) for k in vcpus}
    waiting = list(vcpus)
    for at in reversed(range(len(types))):
        able = [k for k in waiting if at in usable[k]]
        # A vCPU that may use no slower core type has the strongest claim of all.
        strength = {k: float("inf") if slowest[k] == at else claims[k][at] for k in able}
        incumbents = {k for k in able if now[k] == at}
        count = sum([places[p] for p in ids[at]])
        assignment.fill_type(_winners(strength, incumbents, count, threshold, allowance), ids[at])
        waiting = [k for k in waiting if k not in assignment.pcpu_of]
    for key in waiting:
        assignment.put_anywhere(key)
    assignment.use_spare_time(claims, ids, allowance)
    return affinities(view, vcpus, assignment.pcpu_of)


def affinities(
    view: HostView, vcpus: Mapping[VcpuKey, VcpuView], pcpu_of: Mapping[VcpuKey, int]
) -> dict[VcpuKey, frozenset[int]]:
    """The pCPUs for vCPUs that were assigned one each.

    That is the pCPU alone, or all allowed pCPUs of its core type if the type has bookings.
    """
    of_type: dict[int, frozenset[int]] = {}
    for core_type in view.topology.core_types:
        ids = view.topology.pcpus_of(core_type.name)
        if ids & view.booked or any(view.free_cores.get(p, 0.0) < 1.0 - _NOISE for p in ids):
            of_type |= dict.fromkeys(ids, ids)
    return {
        k: (p in of_type and of_type[p] & vcpus[k].allowed) or frozenset({p})
        for k, p in pcpu_of.items()
    }


def has_time(view: HostView, pcpu: int) -> bool:
    """Whether bookings leave a pCPU enough time to put a vCPU on it."""
    return view.free_cores.get(pcpu, 0.0) >= TIME_MIN_CORES
