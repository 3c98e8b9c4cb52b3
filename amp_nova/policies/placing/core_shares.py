"""Shares of core types in the long run: how much time of each type every vCPU shall get.

What papers write down is fluid: this vCPU gets a third of the fast cores' time. A policy says so
with one of the functions here; ``turns`` makes whole vCPUs on whole pCPUs of it, interval by
interval.

Every vCPU that is active has the same CPU time, a core of its own at most; only on which core type
it has it is the policy's to say. Types are dealt out from the fastest down, so that no fast core
idles while a vCPU that may use it is on a slow one (fast-core conservation, kwon2011 section 3.2).
Who may not use any slower type comes first on his own.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.assignment import seats

ACTIVE_LEAST_RATIO = 0.02
"""A vCPU that wanted to run for less than this share of the last interval is idle."""
_NOTHING = 1e-12
Shares = Mapping[VcpuKey, tuple[float, ...]]
"""Cores of every core type, slowest first: a vCPU's sum is its CPU time over wall time."""
Score = Callable[[VcpuView], float | None]
Weight = Callable[[VcpuView], float]
Group = Sequence[VcpuKey]


@dataclass(frozen=True, slots=True)
class Room:
    """What there is to share: active vCPUs in the order of their keys, and cores by type."""

    vcpus: tuple[VcpuView, ...]
    cores: tuple[float, ...]
    each_cores: float
    """CPU time over wall time that every active vCPU can have."""
    types: Mapping[VcpuKey, frozenset[int]]
    """Positions of the core types that each vCPU may use."""


def wanted_to_run(vcpu: VcpuView) -> bool:
    """Whether it wanted to run in the last interval; one that nothing is known of yet did."""
    return vcpu.demand_ratio is None or vcpu.demand_ratio >= ACTIVE_LEAST_RATIO


def is_active(vcpu: VcpuView) -> bool:
    """Whether it wants to run now, as far as that can be told."""
    return wanted_to_run(vcpu) and not vcpu.asleep


def room(view: HostView) -> Room:
    """What bookings leave of the pCPUs that seat a vCPU, and those who want it."""
    pcpus = [view.topology.pcpus_of(t.name) for t in view.topology.core_types]
    types = {
        v.key: frozenset(at for at, ids in enumerate(pcpus) if ids & v.allowed)
        for v in view.vcpus
        if is_active(v)
    }
    vcpus = [v for v in view.vcpus if types.get(v.key)]
    seated = seats(view, len(vcpus))
    cores = tuple(
        sum(max(0.0, view.free_cores.get(p, 0.0)) for p in ids if seated[p]) for ids in pcpus
    )
    each = min(1.0, math.fsum(cores) / len(vcpus)) if vcpus else 0.0
    return Room(tuple(sorted(vcpus, key=lambda v: v.key)), cores, each, types)


def pour(room_cores: float, lacks: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Divide by weight, nobody above what he lacks, nothing left while somebody lacks more."""
    order = sorted(range(len(lacks)), key=lambda i: lacks[i] / weights[i])
    given, left, weight = [0.0] * len(lacks), room_cores, math.fsum(weights)
    for i in order:
        given[i] = min(lacks[i], max(0.0, left) * weights[i] / weight) if weight > 0.0 else 0.0
        left -= given[i]
        weight -= weights[i]
    return given


class _Deal:
    """Deals out one core type after the other, from the fastest down."""

    def __init__(self, room: Room, weight: Weight) -> None:
        self.room = room
        self.weight = {v.key: weight(v) for v in room.vcpus}
        self.lack = {v.key: room.each_cores for v in room.vcpus}
        self.given: dict[VcpuKey, list[float]] = {
            v.key: [0.0] * len(room.cores) for v in room.vcpus
        }

    def give(self, at: int, cores: float, keys: Iterable[VcpuKey]) -> float:
        """Divide cores of a type among some; returns what nobody took."""
        takers = [k for k in keys if at in self.room.types[k] and self.lack[k] > 0.0]
        lacks, weights = [self.lack[k] for k in takers], [self.weight[k] for k in takers]
        for key, amount in zip(takers, pour(cores, lacks, weights), strict=True):
            self.given[key][at] += amount
            self.lack[key] -= amount
            cores -= amount
        return max(0.0, cores)

    def grant(self, at: int, cores: float, key: VcpuKey) -> float:
        """Give one as much as he lacks of so many cores; returns how much that was."""
        amount = min(cores, self.lack[key])
        self.given[key][at] += amount
        self.lack[key] -= amount
        return amount

    def bound(self, at: int) -> list[VcpuKey]:
        """Those for whom nothing slower comes."""
        return [v.key for v in self.room.vcpus if min(self.room.types[v.key]) == at]


def deal(
    room: Room,
    groups: Sequence[Group],
    floors: Shares = MappingProxyType({}),
    weight: Weight = lambda vcpu: 1.0,
) -> Shares:
    """Give everybody his floor of every type, and the rest group by group, by weight within one.

    What the groups leave goes to everybody.
    """
    dealt = _Deal(room, weight)
    everybody = [v.key for v in room.vcpus]
    for at in reversed(range(len(room.cores))):
        left = dealt.give(at, room.cores[at], dealt.bound(at))
        for key, floor in floors.items():
            left -= dealt.grant(at, min(left, floor[at]), key)
        for group in (*groups, everybody):
            if left <= _NOTHING:
                break
            left = dealt.give(at, left, group)
    return {key: tuple(given) for key, given in dealt.given.items()}


def evenly(room: Room, weight: Weight = lambda vcpu: vcpu.weight) -> Shares:
    """Everybody has the same share of every core type, or a share by weight."""
    return deal(room, [[v.key for v in room.vcpus]], weight=weight)


def by_rank(room: Room, groups: Sequence[Group], even_ratio: float = 0.0) -> Shares:
    """``even_ratio`` of what ``evenly`` gives to each, the rest to the first groups while it lasts.

    Who is in none of the groups, because nothing is known of him, keeps all that ``evenly`` gives.
    """
    known = {key for group in groups for key in group}
    floors = {
        key: share if key not in known else tuple(even_ratio * s for s in share)
        for key, share in evenly(room).items()
    }
    return deal(room, groups, floors)


def vms(room: Room) -> dict[str, list[VcpuView]]:
    """Active vCPUs by instance."""
    found = defaultdict(list)
    for vcpu in room.vcpus:
        found[vcpu.key[0]].append(vcpu)
    return dict(found)


def ranked_vms(room: Room, score: Score) -> list[Group]:
    """Instances, the highest mean score over their active vCPUs first; those without one not."""
    means = []
    for name, vcpus in vms(room).items():
        known = [s for v in vcpus if (s := score(v)) is not None]
        if known:
            means.append((-math.fsum(known) / len(known), name, [v.key for v in vcpus]))
    return [keys for _, _, keys in sorted(means)]


def ranked_vcpus(room: Room, score: Score) -> list[Group]:
    """vCPUs, the highest score first, those without one not."""
    known = [(-s, v.key) for v in room.vcpus if (s := score(v)) is not None]
    return [[key] for _, key in sorted(known)]
