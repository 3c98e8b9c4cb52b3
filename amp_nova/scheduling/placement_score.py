"""What the cloud gains if an instance goes to a host: who gets and who loses fast cores there.

Best-effort vCPUs share what bookings leave, by the same computation as the host's policy
(``policies.placing.core_shares``); a booking makes what they share smaller. Speeds are in reference
cores: a workload of sensitivity ``x`` runs at ``1 + x (coefficient - 1)`` on a core type, so 0 is a
workload that waits for memory only and 1 one that gains all that the hardware gives (kwon2011
section 2.1).
"""

import math
from bisect import insort_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from amp_nova.flavor.extra_specs import Booking
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import Topology
from amp_nova.policies.api import VcpuView
from amp_nova.policies.placing import core_shares
from amp_nova.profiling.hints import HINTS
from amp_nova.wire.host_report import HostSnapshot, InstanceShare, Speedup

UNKNOWN = HINTS["medium"]
SENSITIVITY_MAX = 1.5
"""Work that fits a fast core's larger caches may gain more than the coefficient says."""
IDLE_WORTH_RATIO = 0.1
"""What capacity that nobody uses now is worth, of what it is worth in use: someone may come."""
RENT_RATIO = 0.5
"""What a booking that a reference core would hold costs on a faster one, of what it books: that
core could serve somebody whom no slower one serves."""
RANKED = frozenset({"amp-vm", "amp-vcpu", "hsp", "amp-adaptive-fair", "amp-r-fair"})
"""Policies that give the fast cores to those who gain most, for the most part; others: evenly."""
GAIN_MAX = 4.0
"""Gains beyond this many reference cores per vCPU count as this."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that looks for a host.

    ``wanted_refcores``: what it books; its other vCPUs, ``best_effort`` of them, share what is
    left.
    """

    best_effort: int
    wanted_refcores: tuple[float, ...] = ()
    sensitivity: float = UNKNOWN
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """``gain``: what the cloud gains, in reference cores for each that it books or, best effort,
    for each vCPU. ``pace``: how fast each of its best-effort vCPUs would be, in reference cores."""

    gain: float
    pace: float


Group = tuple[float, int]
"""The sensitivity of an instance's best-effort vCPUs, and how many there are."""


@dataclass(frozen=True, slots=True)
class Market:
    """A host's best effort, and what it shares; see ``market``."""

    topology: Topology
    cores: tuple[float, ...]
    vcpus: tuple[VcpuView, ...]
    sensitivities: Mapping[VcpuKey, float]
    ranked: bool
    groups: tuple[Group, ...] | None
    """Instances, those that gain most first, where all vCPUs are alike in what they may use."""
    worth: float = 0.0


def hinted(hint: float | str | None, topology: Topology) -> float | None:
    """The sensitivity that ``amp:efficiency`` means on a host; ``None`` without a hint."""
    if hint is None:
        return None
    if isinstance(hint, str):
        return HINTS.get(hint)
    return sensitivity(Speedup(hint), topology)


def sensitivity(speedup: Speedup, topology: Topology) -> float | None:
    """The sensitivity of a workload that has this speedup on a host; ``None`` if it has one type.

    Solves ``speedup = (1 + x (fast - 1)) / (1 + x (slow - 1))``.
    """
    known = [t.coefficient for t in topology.core_types if t.coefficient is not None]
    if len(known) < 2 or known[-1] <= known[0]:
        return None
    slope = (known[-1] - 1.0) - speedup.ratio * (known[0] - 1.0)
    if slope <= 0.0:
        return SENSITIVITY_MAX
    return min(max((speedup.ratio - 1.0) / slope, 0.0), SENSITIVITY_MAX)


def measured(instance: InstanceShare, topology: Topology) -> float | None:
    """An instance's sensitivity as its host measured it: the mean over its vCPUs."""
    found = [
        x
        for v in instance.vcpus
        if v.speedup is not None and (x := sensitivity(v.speedup, topology)) is not None
    ]
    return math.fsum(found) / len(found) if found else None


def market(snapshot: HostSnapshot, free: Mapping[str, Sequence[float]]) -> Market:
    """A host's best effort as reported; ``free``: what bookings leave, by core type."""
    topology = snapshot.topology
    cores = tuple(
        sum(max(0.0, share) for share in free.get(t.name, ())) for t in topology.core_types
    )
    vcpus, known = [], {}
    for instance in snapshot.instances:
        own = measured(instance, topology)
        if own is None:
            own = hinted(instance.hint, topology)
        for vcpu in instance.vcpus:
            if vcpu.booked:
                continue
            key = (instance.resource, vcpu.index)
            view = VcpuView(
                key,
                vcpu.allowed,
                vcpu.allowed,
                instance.weight,
                demand_ratio=vcpu.utilization_ratio,
            )
            if core_shares.is_active(view):
                vcpus.append(view)
                known[key] = UNKNOWN if own is None else own
    made = Market(
        topology,
        cores,
        tuple(vcpus),
        known,
        snapshot.policy in RANKED,
        _groups(vcpus, known, topology),
    )
    return replace(made, worth=_deal(made, cores)[0])


def _groups(
    vcpus: Sequence[VcpuView], known: Mapping[VcpuKey, float], topology: Topology
) -> tuple[Group, ...] | None:
    """Best effort by instance; ``None`` where weights or allowed core types differ."""
    everywhere = frozenset(range(len(topology.core_types)))
    if any(v.weight != 1.0 or _types(v, topology) != everywhere for v in vcpus):
        return None
    counts = Counter(v.key[0] for v in vcpus)
    level = {v.key[0]: known[v.key] for v in vcpus}
    return tuple(sorted(((level[r], n) for r, n in counts.items()), reverse=True))


def outlook(market: Market, candidate: Candidate, core_types: Sequence[str] = ()) -> Outlook:
    """What the cloud gains if an instance comes; ``core_types``: where its bookings are packed."""
    taken = dict.fromkeys((t.name for t in market.topology.core_types), 0.0)
    rented = 0.0
    for name, size in zip(core_types, candidate.wanted_refcores, strict=False):
        coefficient = market.topology.core_type(name).coefficient or 1.0
        taken[name] += size / coefficient
        rented += size if size <= 1.0 < coefficient else 0.0
    cores = tuple(
        max(0.0, c - taken[t.name])
        for c, t in zip(market.cores, market.topology.core_types, strict=True)
    )
    worth, own = _deal(market, cores, candidate)
    booked = math.fsum(candidate.wanted_refcores)
    gain = booked + worth - market.worth - RENT_RATIO * rented
    pace = own / candidate.best_effort if candidate.best_effort else 0.0
    return Outlook(gain / (booked + candidate.best_effort or 1.0), pace)


def _deal(
    market: Market, cores: tuple[float, ...], candidate: Candidate | None = None
) -> tuple[float, float]:
    """What everybody makes of these cores, in reference cores, and the candidate's part of it."""
    faster = [(t.coefficient or 1.0) - 1.0 for t in market.topology.core_types]
    comes = candidate is not None and candidate.best_effort > 0
    if market.groups is not None and (candidate is None or candidate.weight == 1.0 or not comes):
        made, own, idle = _deal_alike(market, cores, faster, candidate)
    else:
        made, own, idle = _deal_each(market, cores, faster, candidate)
    spare = sum(i * (1.0 + UNKNOWN * f) for i, f in zip(idle, faster, strict=True))
    return made + IDLE_WORTH_RATIO * spare, own


def _deal_alike(
    market: Market,
    cores: tuple[float, ...],
    faster: Sequence[float],
    candidate: Candidate | None,
) -> tuple[float, float, list[float]]:
    """The shares where all vCPUs of an instance have the same: by instance, not by vCPU."""
    groups = list(market.groups or ())
    mine: Group | None = None
    if candidate is not None and candidate.best_effort:
        mine = (candidate.sensitivity, candidate.best_effort)
        insort_left(groups, mine, key=lambda group: (-group[0], -group[1]))
    count = sum(n for _, n in groups)
    each = min(1.0, math.fsum(cores) / count) if count else 0.0
    order = groups
    if not market.ranked and count:
        # All have the same: one instance of the mean sensitivity.
        order = [(math.fsum(x * n for x, n in groups) / count, count)]
    lacks, idle = [each] * len(order), list(cores)
    made = own = 0.0
    for at in reversed(range(len(cores))):
        for place, group in enumerate(order):
            x, n = group
            share = min(lacks[place], idle[at] / n)
            if share <= 0.0:
                continue
            lacks[place] -= share
            idle[at] = max(0.0, idle[at] - share * n)
            made += share * n * (1.0 + x * faster[at])
            if mine is not None and (group is mine or not market.ranked):
                own += share * mine[1] * (1.0 + mine[0] * faster[at])
    return made, own, idle


def _deal_each(
    market: Market,
    cores: tuple[float, ...],
    faster: Sequence[float],
    candidate: Candidate | None,
) -> tuple[float, float, list[float]]:
    """The shares of every vCPU, as the policy computes them."""
    topology = market.topology
    everywhere = frozenset(range(len(cores)))
    vcpus, known = list(market.vcpus), dict(market.sensitivities)
    if candidate is not None:
        pcpus = frozenset(p.id for p in topology.pcpus)
        for index in range(candidate.best_effort):
            vcpus.append(VcpuView(("", index), pcpus, pcpus, candidate.weight))
            known["", index] = candidate.sensitivity
    here = core_shares.SharedCapacity(
        tuple(vcpus),
        cores,
        min(1.0, math.fsum(cores) / len(vcpus)) if vcpus else 0.0,
        {v.key: _types(v, topology) or everywhere for v in vcpus},
    )
    if market.ranked:
        ranks = core_shares.ranked_instances(here, lambda v: known[v.key])
        given = core_shares.by_rank(here, ranks)
    else:
        given = core_shares.evenly(here)
    made = own = 0.0
    idle = list(cores)
    for key, amounts in given.items():
        speed = 0.0
        for at, amount in enumerate(amounts):
            speed += amount * (1.0 + known[key] * faster[at])
            idle[at] -= amount
        made += speed
        own += speed if key[0] == "" else 0.0
    return made, own, idle


def _types(vcpu: VcpuView, topology: Topology) -> frozenset[int]:
    return frozenset(
        at
        for at, t in enumerate(topology.core_types)
        if not vcpu.allowed.isdisjoint(topology.pcpus_of(t.name))
    )


def candidate_of(booking: Booking, sizes: tuple[float, ...], sensitivity: float) -> Candidate:
    """The part of an instance that matters here; ``sizes``: reference cores, greatest first."""
    best_effort = sum(v.kind == "best_effort" for v in booking.vcpus)
    return Candidate(best_effort, sizes, sensitivity, booking.weight)
