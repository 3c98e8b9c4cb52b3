"""Reference cores, cores and quotas, and whether bookings fit a host.

A booked vCPU of ``b`` reference cores needs ``b / coef(type)`` of one pCPU of a type with
``coef >= b`` (teabe2017, section 3.1). A host holds a set of bookings if and only if they can be
packed onto its pCPUs, none filled above 1 minus the operator's reserve. The scheduler's filter, the
agent and the simulator all ask ``pack``.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from amp_nova.core.topology import CoreType, Topology

TOLERANCE = 1e-9
"""Slack of comparisons between sums of decimals, in cores."""

PERIOD_MIN_US = 20_000
PERIOD_USUAL_MAX_US = 100_000
PERIOD_MAX_US = 1_000_000
QUOTA_MIN_US = 1_000
QUOTA_AIM_US = 5_000


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A CFS bandwidth limit: at most ``quota_us`` of CPU time in every ``period_us``."""

    quota_us: int
    period_us: int

    @property
    def cores(self) -> float:
        """The limit as a wall share of one pCPU."""
        return self.quota_us / self.period_us


def cores(refcores: float, core_type: CoreType) -> float | None:
    """Share of one such pCPU that is worth ``refcores``; ``None`` if its speed is unknown."""
    return None if core_type.coefficient is None else refcores / core_type.coefficient


def period_us(least_cores: float) -> int:
    """The bandwidth period for a vCPU whose least quota is ``least_cores``.

    Short periods keep jitter low, but every throttling costs the guest a cold restart, so a small
    quota gets a longer period: runs of about 5 ms, period 20 to 100 ms. The kernel takes no quota
    under 1 ms, so tiny bookings get up to 1 s.
    """
    aim = min(max(QUOTA_AIM_US / least_cores, PERIOD_MIN_US), PERIOD_USUAL_MAX_US)
    needed = QUOTA_MIN_US / least_cores
    return int(min(max(aim, math.ceil(needed)), PERIOD_MAX_US))


def bandwidth(share_cores: float, period: int) -> Bandwidth | None:
    """The limit that holds a vCPU at ``share_cores``; ``None`` when one whole pCPU is no limit."""
    if share_cores >= 1.0 - TOLERANCE:
        return None
    return Bandwidth(max(QUOTA_MIN_US, round(share_cores * period)), period)


@dataclass(frozen=True, slots=True)
class Demand:
    """One booked vCPU that wants a place.

    ``allowed``: pCPUs that Nova and libvirt leave it; ``core_type``: the one its flavor insists on;
    ``current``: the core type it is kept on now, which spares a move.
    """

    key: Hashable
    refcores: float
    allowed: frozenset[int]
    core_type: str | None = None
    current: str | None = None


@dataclass(frozen=True, slots=True)
class Packing:
    """Where booked vCPUs go: a pCPU each, or the reason why there is none."""

    placed: Mapping[Hashable, int]
    unplaced: Mapping[Hashable, str]
    free_cores: Mapping[int, float]

    @property
    def complete(self) -> bool:
        """Whether everything found a place."""
        return not self.unplaced


def _candidates(demand: Demand, topology: Topology, *, sticky: bool) -> list[CoreType]:
    """Core types that can hold a vCPU, the slowest that suffices first: fast time is precious."""
    types = [
        t
        for t in topology.core_types
        if t.coefficient is not None
        and t.coefficient >= demand.refcores - TOLERANCE
        and demand.core_type in (None, t.name)
        and demand.allowed & topology.pcpus_of(t.name)
    ]
    if sticky:
        types.sort(key=lambda t: t.name != demand.current)
    return types


def _reason(demand: Demand, topology: Topology) -> str:
    if _candidates(demand, topology, sticky=False):
        return f"{demand.refcores:g} reference cores are not free on any pCPU it may use"
    if not any(topology.type_of(p) for p in demand.allowed):
        return "none of the pCPUs it may use is online"
    where = f"core type {demand.core_type}" if demand.core_type else "any core type it may use"
    return f"{demand.refcores:g} reference cores per vCPU are more than {where} can give"


def _attempt(
    demands: Sequence[Demand], topology: Topology, room_cores: float, *, sticky: bool
) -> Packing:
    """First fit, decreasing: those with the least choice first, then the largest."""
    free = {p.id: room_cores for p in topology.pcpus}
    placed: dict[Hashable, int] = {}
    unplaced: dict[Hashable, str] = {}
    order = sorted(
        enumerate(demands),
        key=lambda d: (len(d[1].allowed), not (sticky and d[1].current), -d[1].refcores, d[0]),
    )
    for _, demand in order:
        for core_type in _candidates(demand, topology, sticky=sticky):
            need = cores(demand.refcores, core_type)
            assert need is not None  # candidates have a coefficient
            usable = demand.allowed & topology.pcpus_of(core_type.name)
            fitting = [p for p in usable if free[p] >= need - TOLERANCE]
            if fitting:
                best = min(fitting, key=lambda p: (free[p], p))
                free[best] -= need
                placed[demand.key] = best
                break
        else:
            unplaced[demand.key] = _reason(demand, topology)
    return Packing(placed, unplaced, free)


def pack(demands: Iterable[Demand], topology: Topology, reserve_ratio: float = 0.0) -> Packing:
    """Pack booked vCPUs onto pCPUs, moving as few of those that have a core type as possible.

    Moves are taken only when what stays in place leaves something out. Deterministic; the order of
    ``demands`` breaks ties.
    """
    wanted = list(demands)
    room_cores = 1.0 - reserve_ratio
    stay = _attempt(wanted, topology, room_cores, sticky=True)
    if stay.complete or all(d.current is None for d in wanted):
        return stay
    fresh = _attempt(wanted, topology, room_cores, sticky=False)
    return fresh if len(fresh.unplaced) < len(stay.unplaced) else stay


def fits(
    held: Iterable[Demand], asked: Iterable[Demand], topology: Topology, reserve_ratio: float = 0.0
) -> bool:
    """Whether a host that holds some bookings can take others as well."""
    return pack([*held, *asked], topology, reserve_ratio).complete
