# SPDX-License-Identifier: Apache-2.0
"""Long-run shares of core types: how much time on each type every vCPU should get.

Papers state their policies in fluid form: "this vCPU gets a third of the fast cores' time". A
policy computes such shares with a function of this module, and ``deficit`` approximates them with
whole vCPUs on whole pCPUs, interval by interval.

Every active vCPU has the same CPU time, at most one core. A policy decides on which core types it
has that time. Types are divided from the fastest down, so that no fast core idles while a
vCPU that may use it is on a slower one (fast-core conservation, kwon2011 section 3.3). Among those
that may use a type, the vCPUs that may use no slower type are served first.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.places import usable_types, vcpus_per_pcpu

ACTIVE_MIN_RATIO = 0.02
"""A vCPU whose demand in the last interval was below this share of the time is idle."""
_NOISE = 1e-12
Shares = Mapping[VcpuKey, tuple[float, ...]]
"""Cores of each core type, slowest first. Their sum is the vCPU's CPU time over wall time."""
Score = Callable[[VcpuView], float | None]
Weight = Callable[[VcpuView], float]
Group = Sequence[VcpuKey]
_KEY = attrgetter("key")


@dataclass(frozen=True, slots=True)
class SharedCapacity:
    """The best-effort vCPUs of a host, and the capacity that they share."""

    vcpus: tuple[VcpuView, ...]
    """The active vCPUs, ordered by key."""
    cores: tuple[float, ...]
    """Cores of each core type, slowest first."""
    each_cores: float
    """CPU time over wall time that every active vCPU can have."""
    types: Mapping[VcpuKey, frozenset[int]]
    """Positions of the core types that each vCPU may use."""
    places: Mapping[int, int] = field(default_factory=dict)
    """How many of the vCPUs each pCPU takes."""


def wanted_to_run(demand_ratio: float | None) -> bool:
    """Whether a vCPU had demand in the last interval; one without history counts as if it had."""
    return demand_ratio is None or demand_ratio >= ACTIVE_MIN_RATIO


def is_active(vcpu: VcpuView) -> bool:
    """Whether a vCPU takes part in the decision: it had demand and has not fallen asleep since."""
    return not vcpu.asleep and wanted_to_run(vcpu.demand_ratio)


def shared_capacity(view: HostView) -> SharedCapacity:
    """The active vCPUs of a host, and what bookings leave of the pCPUs that these can fill."""
    pcpus = [view.topology.pcpus_of(t.name) for t in view.topology.core_types]
    types = usable_types(view, filter(is_active, view.vcpus))
    vcpus = [v for v in view.vcpus if types.get(v.key)]
    taken = vcpus_per_pcpu(view, len(vcpus))
    cores = tuple(
        sum(max(0.0, view.free_cores.get(p, 0.0)) for p in ids if taken[p]) for ids in pcpus
    )
    each = min(1.0, math.fsum(cores) / len(vcpus)) if vcpus else 0.0
    return SharedCapacity(tuple(sorted(vcpus, key=_KEY)), cores, each, types, taken)


def water_fill(capacity: float, demands: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Weighted max-min fair division of ``capacity``.

    No share exceeds its demand, and nothing is left over while a demand is unmet.
    """
    order = sorted(range(len(demands)), key=lambda i: demands[i] / weights[i])
    shares, left, weight = [0.0] * len(demands), capacity, math.fsum(weights)
    for i in order:
        shares[i] = min(demands[i], max(0.0, left) * weights[i] / weight) if weight > 0.0 else 0.0
        left -= shares[i]
        weight -= weights[i]
    return shares


def distribute(
    shared: SharedCapacity,
    groups: Sequence[Group],
    floors: Shares = MappingProxyType({}),
    weight: Weight = lambda vcpu: 1.0,
) -> Shares:
    """Give every vCPU its floor of every type, then serve the groups in order.

    Within a group, capacity is divided by weight. What the groups leave goes to all vCPUs.
    """
    keys = [v.key for v in shared.vcpus]
    weights = {v.key: weight(v) for v in shared.vcpus}
    slowest = {key: min(shared.types[key]) for key in keys}
    unmet = dict.fromkeys(keys, shared.each_cores)
    shares = {key: [0.0] * len(shared.cores) for key in keys}

    def divide(at: int, cores: float, group: Iterable[VcpuKey]) -> float:
        """Divide cores of a type among vCPUs; returns what they leave."""
        takers = [k for k in group if at in shared.types[k] and unmet[k] > 0.0]
        if takers:
            filled = water_fill(cores, [unmet[k] for k in takers], [weights[k] for k in takers])
            for key, amount in zip(takers, filled, strict=True):
                shares[key][at] += amount
                unmet[key] -= amount
                cores -= amount
        return max(0.0, cores)

    for at in reversed(range(len(shared.cores))):
        left = divide(at, shared.cores[at], [k for k in keys if slowest[k] == at])
        for key, floor in floors.items():
            amount = min(left, floor[at], unmet[key])
            shares[key][at] += amount
            unmet[key] -= amount
            left -= amount
        for group in (*groups, keys):
            if left <= _NOISE:
                break
            left = divide(at, left, group)
    return {key: tuple(cores) for key, cores in shares.items()}


def evenly(shared: SharedCapacity, weight: Weight = lambda vcpu: vcpu.weight) -> Shares:
    """The same share of every core type for every vCPU, or a share in proportion to ``weight``."""
    return distribute(shared, [[v.key for v in shared.vcpus]], weight=weight)


def by_rank(shared: SharedCapacity, groups: Sequence[Group], even_ratio: float = 0.0) -> Shares:
    """Give every vCPU ``even_ratio`` of its share in ``evenly``, then serve the groups in order.

    A vCPU in no group, because its score is unknown, keeps its whole share in ``evenly``.
    """
    ranked = {key for group in groups for key in group}
    floors = {
        key: share if key not in ranked else tuple([even_ratio * s for s in share])
        for key, share in evenly(shared).items()
    }
    return distribute(shared, groups, floors)


def by_instance(shared: SharedCapacity) -> dict[str, list[VcpuView]]:
    """Active vCPUs by instance."""
    instances = defaultdict(list)
    for vcpu in shared.vcpus:
        instances[vcpu.key[0]].append(vcpu)
    return dict(instances)


def ranked_instances(shared: SharedCapacity, score: Score) -> list[Group]:
    """Instances by the mean score of their active vCPUs, highest first; unscored ones omitted."""
    means = []
    for name, vcpus in by_instance(shared).items():
        scores = [s for v in vcpus if (s := score(v)) is not None]
        if scores:
            means.append((-math.fsum(scores) / len(scores), name, [v.key for v in vcpus]))
    return [keys for _, _, keys in sorted(means)]


def ranked_vcpus(shared: SharedCapacity, score: Score) -> list[Group]:
    """vCPUs by score, highest first, one in each group; unscored ones omitted."""
    scores = [(-s, v.key) for v in shared.vcpus if (s := score(v)) is not None]
    return [[key] for _, key in sorted(scores)]
