"""The contract of booked vCPUs: what each is granted, and what cannot be granted.

Solution 1 of teabe2017 (section 3.1): CPU time on a core of type ``p`` counts ``coef(p)`` times,
so a vCPU that books ``b`` reference cores may use the share ``b / coef(p)`` of one such core. It is
kept on one core type at a time, which makes that exact; the share is a CFS bandwidth limit.

Solution 2: a vCPU that books instructions per second takes the room that they take nominally, and
is placed alike. What it retires is counted, and the fast loop sets its limit
(``control.ips_controller``).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from amp_nova.admission import headroom
from amp_nova.admission import packing as packing_
from amp_nova.control import ips_limit, own_coefficients
from amp_nova.control.burst import Burst
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.model import bandwidth
from amp_nova.model.allocation import Grant
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import VcpuKey, VcpuReading
from amp_nova.model.topology import CoreType, Topology


@dataclass(frozen=True, slots=True)
class Promise:
    """One vCPU of a domain as the contract sees it; ``note`` says what is not enforced, and why."""

    booking: VcpuBooking
    grant: Grant | None = None
    core_type: str | None = None
    pcpu: int | None = None
    note: str | None = None
    weight: float = 1.0
    hands_off: bool = False
    """Whether nothing of it may be changed, by a policy either."""
    coefficient: float | None = None
    """Its own coefficient of its core type, where it is not the type's that counts."""
    cores: float | None = None
    """The share of its pCPU that it takes, where it has one."""
    most_cores: float | None = None
    """The share of it that it may have while it spends what it banked."""
    rooms: Mapping[str, Bandwidth | None] = field(default_factory=dict)
    """Limits by core type of one without a booking that does not yield to bookings."""
    burst: Burst | None = None
    """What it may bank, where that is kept by cycles (``control.burst``)."""


@dataclass(frozen=True, slots=True)
class Booked:
    """One domain's part of the contract: its booking, and its vCPUs' readings."""

    resource: str
    booking: Booking
    readings: Sequence[VcpuReading]
    hands_off: str | None = None
    """Why nothing of it may be changed (paused, released, limited elsewhere)."""
    yields: bool = False
    """Whether it runs in what others leave, as best effort does and who found no room."""
    coefficients: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Own coefficients of vCPUs by index and core type, of those that shall go by them."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How the operator wants bookings kept; ``ips``: those of instructions per second."""

    reserve_ratio: float = 0.0
    one_pcpu: bool = False
    """Keep a vCPU on the pCPU it was packed onto, not on any of its core type."""
    best_effort_yields: bool = True
    ips: ips_limit.Terms = field(default_factory=ips_limit.Terms)


def _booking_of(domain: Booked, reading: VcpuReading) -> VcpuBooking:
    """The booking of a vCPU; one that the domain's definition does not count books nothing."""
    vcpus = domain.booking.vcpus
    return vcpus[reading.index] if reading.index < len(vcpus) else VcpuBooking(reading.index)


def _demands(
    domains: Sequence[Booked], topology: Topology, before: Mapping[VcpuKey, Promise]
) -> list[packing_.Demand]:
    demands = []
    for domain in domains:
        for reading in domain.readings:
            booked = _booking_of(domain, reading)
            refcores = booked.refcores
            if booked.ips is not None:
                refcores = packing_.least_refcores(booked.ips, topology)
            if refcores is not None:
                had = before.get((domain.resource, reading.index))
                packed = None if had is None else had.pcpu
                settled = packed is not None if before else None
                demand = _demand(domain, reading, booked, refcores, settled, topology)
                demands.append(replace(demand, packed=packed))
    return demands


def _demand(
    domain: Booked,
    reading: VcpuReading,
    booked: VcpuBooking,
    refcores: float,
    settled: bool | None,
    topology: Topology,
) -> packing_.Demand:
    """One vCPU's demand; ``settled=None`` when it is not known who had a place."""
    now = topology.only_type(reading.pcpus)
    own = own_coefficients.NONE
    if booked.ips is None:
        own = domain.coefficients.get(reading.index, own_coefficients.NONE)
    demand = packing_.Demand(
        key=(domain.resource, reading.index),
        refcores=refcores,
        allowed=reading.allowed,
        core_type=domain.booking.core_type,
        current=now.name if now else None,
        pcpu=min(reading.pcpus) if len(reading.pcpus) == 1 else None,
        admitted=now is not None and not domain.yields if settled is None else settled,
        coefficients=own_coefficients.bounded(own, refcores, topology),
        ips=booked.ips,
    )
    if domain.hands_off is None or now is None:
        return demand
    # It stays where it is: that is the room it takes, if its booking can be had there.
    return replace(demand, core_type=now.name) if _suffices(demand, now) else demand


def _type_cores(demand: packing_.Demand, core_type: CoreType) -> float | None:
    """Share of one such pCPU that a vCPU needs, by what core types are worth."""
    return packing_.need_cores(replace(demand, coefficients=own_coefficients.NONE), core_type)


def _suffices(demand: packing_.Demand, core_type: CoreType) -> bool:
    need = _type_cores(demand, core_type)
    return need is not None and need <= 1.0 + bandwidth.TOLERANCE


def _fallback_type(
    demand: packing_.Demand, topology: Topology, free_cores: Mapping[int, float]
) -> CoreType | None:
    """Where a vCPU goes that finds no room.

    Among types that are fast enough, it stays on its own or goes where it takes least from each
    other; if none is, to the fastest.
    """
    usable = [
        t
        for t in topology.core_types
        if _type_cores(demand, t) is not None
        and demand.core_type in (None, t.name)
        and demand.allowed & topology.pcpus_of(t.name)
    ]

    def excess_cores(core_type: CoreType) -> float:
        pcpus = demand.allowed & topology.pcpus_of(core_type.name)
        need = _type_cores(demand, core_type) or 0.0
        return (need - sum(free_cores[p] for p in pcpus)) / len(pcpus)

    enough = [t for t in usable if _suffices(demand, t)]
    kept = [t for t in enough if t.name == demand.current]
    if enough:
        return min(kept or enough, key=excess_cores)
    return min(usable, key=lambda t: _type_cores(demand, t) or 0.0, default=None)


def _limit(
    demand: packing_.Demand,
    core_type: CoreType,
    topology: Topology,
    share_cores: float | None = None,
) -> bandwidth.Bandwidth | None:
    """The bandwidth that is worth a booking on a core type, or that of a larger share.

    The period is that of the fastest type, whichever it runs on: a move then is one write, and
    every write gives a period's quota away.
    """
    greatest = max(t.coefficient or 0.0 for t in topology.core_types)
    share = share_cores or packing_.need_cores(demand, core_type)
    assert share is not None  # callers ask for types with a coefficient only
    return bandwidth.bandwidth(share, bandwidth.period_us(min(1.0, demand.refcores / greatest)))


def _place(
    demand: packing_.Demand, packing: packing_.Packing, topology: Topology, terms: Terms
) -> tuple[CoreType | None, int | None, frozenset[int]]:
    """The core type a vCPU goes to, its pCPU if it found room, and the pCPUs it is kept on."""
    pcpu = packing.placed.get(demand.key)
    if pcpu is None:
        core_type = _fallback_type(demand, topology, packing.free_cores)
    else:
        core_type = topology.type_of(pcpu)
    if core_type is None:
        return None, None, frozenset()
    if terms.one_pcpu and pcpu is not None:
        return core_type, pcpu, frozenset({pcpu})
    return core_type, pcpu, demand.allowed & topology.pcpus_of(core_type.name)


def _promise_refcores(
    demand: packing_.Demand,
    booked: VcpuBooking,
    booking: Booking,
    packing: packing_.Packing,
    topology: Topology,
    terms: Terms,
) -> Promise:
    core_type, pcpu, pcpus = _place(demand, packing, topology, terms)
    if core_type is None:
        return Promise(booked, note=f"not enforced: {_unusable(demand, topology)}")
    soft = booking.limit == "soft"
    share_cores = packing.most_cores.get(demand.key) if soft else None
    limit = _limit(demand, core_type, topology, share_cores)
    own = demand.coefficients.get(core_type.name)
    coefficient = core_type.coefficient if own is None else own
    note = _note(demand, coefficient or 0.0, None if soft else limit, packing)
    why = f"{demand.refcores:g} refcores / {coefficient:.4g} on {core_type.name}"
    why = why if own is None else f"{why} (its own coefficient)"
    key: VcpuKey = demand.key  # type: ignore[assignment]
    grant = Grant(key, pcpus, limit, limits=True, why=f"{why}, soft" if soft else why)
    need = packing_.need_cores(demand, core_type)
    burst = None
    if booking.burst_s and not soft and limit is not None and need is not None and note is None:
        most = packing.most_cores.get(demand.key, need)
        burst = Burst(demand.refcores, booking.burst_s, need, most, limit.period_us)
    return Promise(
        booked, grant, core_type.name, pcpu, note, coefficient=own, cores=need, burst=burst
    )


def _note(
    demand: packing_.Demand,
    coefficient: float,
    limit: bandwidth.Bandwidth | None,
    packing: packing_.Packing,
) -> str | None:
    if (reason := packing.unplaced.get(demand.key)) is not None:
        return f"over-booked: {reason}"
    gets = limit.cores * coefficient if limit else 0.0
    if gets > demand.refcores * 1.01:
        return f"may use {gets:g} refcores: the kernel takes no limit as low as its booking"
    return None


def _unusable(demand: packing_.Demand, topology: Topology) -> str:
    if demand.core_type and all(t.name != demand.core_type for t in topology.core_types):
        return f"this host has no core type '{demand.core_type}'"
    if not any(topology.type_of(p) for p in demand.allowed):
        return "none of the pCPUs it may use is online"
    return "the coefficient of its core types is not known; run amp-nova calibrate"


def _promise_rest(
    domain: Booked,
    reading: VcpuReading,
    booked: VcpuBooking,
    packing: packing_.Packing,
    topology: Topology,
) -> Promise:
    """A vCPU without a booking: keep it on its flavor's core type, leave its quota alone.

    Unless its instance has a booking for other vCPUs: then it does not yield, and has a limit.
    """
    wanted = domain.booking.core_type
    key = (domain.resource, reading.index)
    rooms_cores = packing.unbooked_cores.get(key, {})
    if wanted is None and not rooms_cores:
        return Promise(booked)
    pcpus = reading.allowed
    if wanted is not None:
        pcpus &= topology.pcpus_of(wanted)
    if not pcpus:
        return Promise(booked, note=f"not enforced: no pCPU of core type '{wanted}' may be used")
    if not rooms_cores:
        why = f"amp:core_type={wanted}"
        return Promise(booked, Grant(key, pcpus, why=why, loose=True), wanted)
    rooms = {
        name: bandwidth.bandwidth(room, bandwidth.period_us(min(1.0, room)))
        for name, room in rooms_cores.items()
    }
    where = _roomiest(reading, pcpus, rooms_cores, topology)
    grant = Grant(key, pcpus & topology.pcpus_of(where.name), why="what nobody booked", loose=True)
    return Promise(booked, within_room(grant, rooms, where), wanted, rooms=rooms)


def _roomiest(
    reading: VcpuReading,
    pcpus: frozenset[int],
    rooms_cores: Mapping[str, float],
    topology: Topology,
) -> CoreType:
    """The core type it is kept on, as long as it has room there; else the one with most of it."""
    there = [
        t
        for t in topology.core_types
        if t.name in rooms_cores and pcpus & topology.pcpus_of(t.name)
    ]
    now = topology.only_type(reading.pcpus)
    if now in there and rooms_cores[now.name] > headroom.LEAST_CORES:
        return now
    return max(there, key=lambda t: rooms_cores[t.name] * (t.coefficient or 1.0))


def within_room(
    grant: Grant, rooms: Mapping[str, Bandwidth | None], core_type: CoreType | None
) -> Grant:
    """The grant with the limit of a core type; with the lowest for one that may be on any."""
    if not rooms:
        return grant
    lowest = min(rooms.values(), key=lambda limit: 1.0 if limit is None else limit.cores)
    limit = lowest if core_type is None else rooms.get(core_type.name, lowest)
    return replace(grant, bandwidth=limit, limits=True)


def _promise_ips(
    domain: Booked,
    reading: VcpuReading,
    booked: VcpuBooking,
    demand: packing_.Demand | None,
    packing: packing_.Packing,
    topology: Topology,
    terms: Terms,
) -> Promise:
    """What a vCPU that books Ips is promised: a place, and who limits it there.

    Where its instructions are counted, that is the fast loop. Else its booking cannot be verified:
    nominal Ips limit it, or nothing, as configured, and the note says so.
    """
    key = (domain.resource, reading.index)
    wanted = domain.booking.core_type
    core_type, pcpu, cores = None, None, None
    pcpus = reading.allowed & frozenset(p.id for p in topology.pcpus)
    if wanted is not None:
        pcpus &= topology.pcpus_of(wanted)
    if demand is not None:
        core_type, pcpu, pcpus = _place(demand, packing, topology, terms)
        cores = None if core_type is None else packing_.need_cores(demand, core_type)
    if not pcpus:
        missing = demand or packing_.Demand(key, 0.0, reading.allowed, wanted)
        return Promise(booked, note=f"not enforced: {_unusable(missing, topology)}")
    how = domain.booking.limit
    limit = ips_limit.begin(booked.ips or 0.0, how, reading, core_type, topology, terms.ips)
    share_cores = packing.most_cores.get(key)
    if how == "soft" and demand is not None and core_type is not None:
        limit = replace(limit, bandwidth=_limit(demand, core_type, topology, share_cores))
    if demand is None and not limit.governed:  # nobody knows what room it takes, nor what it does
        rest = _promise_rest(domain, reading, booked, packing, topology)
        return replace(rest, note=limit.unverifiable or limit.why)
    reason = packing.unplaced.get(key)
    notes = [limit.unverifiable, None if reason is None else f"over-booked: {reason}"]
    where = core_type.name if core_type else wanted
    why = limit.why if where is None else f"{limit.why} on {where}"
    loose, governed = core_type is None, limit.governed
    grant = Grant(key, pcpus, limit.bandwidth, True, why, loose=loose, governed=governed)
    note = "; ".join(n for n in notes if n) or None
    return Promise(booked, grant, where, pcpu, note, cores=cores, most_cores=share_cores)


def promises(
    domains: Sequence[Booked],
    topology: Topology,
    terms: Terms,
    before: Mapping[VcpuKey, Promise] = MappingProxyType({}),
) -> dict[VcpuKey, Promise]:
    """What every vCPU is promised, packed as the scheduler packs; booked and best effort alike.

    Domains to keep hands off take their room in the packing, but are granted nothing. ``before``:
    what was promised last: where not all fit, who had a place keeps it.
    """
    demands = {d.key: d for d in _demands(domains, topology, before)}
    packing, own = own_coefficients.pack(demands.values(), topology, terms.reserve_ratio)
    demands = {
        k: replace(d, coefficients=own.get(k, own_coefficients.NONE)) for k, d in demands.items()
    }
    packing = _with_rest(domains, demands, packing, topology, terms)
    made: dict[VcpuKey, Promise] = {}
    for domain in domains:
        for reading in domain.readings:
            key = (domain.resource, reading.index)
            booked = _booking_of(domain, reading)
            demand = demands.get(key)
            if booked.ips is not None:
                promise = _promise_ips(domain, reading, booked, demand, packing, topology, terms)
            elif demand is not None:
                promise = _promise_refcores(
                    demand, booked, domain.booking, packing, topology, terms
                )
            else:
                promise = _promise_rest(domain, reading, booked, packing, topology)
            if domain.booking.weight != 1.0:
                promise = replace(promise, weight=domain.booking.weight)
            if domain.hands_off is not None:
                promise = _left_alone(promise, domain.hands_off, reading, topology)
            made[key] = promise
    return made


def _with_rest(
    domains: Sequence[Booked],
    demands: Mapping[Hashable, packing_.Demand],
    packing: packing_.Packing,
    topology: Topology,
    terms: Terms,
) -> packing_.Packing:
    """The packing with what those may have that may have more than they book."""
    able = [d for d in domains if d.booking.limit == "soft" or d.booking.burst_s]
    more = {(d.resource, reading.index) for d in able for reading in d.readings}
    wanted = [d for key, d in demands.items() if key in more]
    rest = [(d, reading) for d in domains if d.booking.booked for reading in _rest(d, packing)]
    if not wanted and not rest:
        return packing
    most, left = headroom.most_cores(wanted, packing, topology, one_pcpu=terms.one_pcpu)
    rooms: dict[Hashable, dict[str, float]] = {}
    for core_type in topology.core_types:
        there = topology.pcpus_of(core_type.name)
        among = [((d.resource, r.index), r.allowed & there) for d, r in rest]
        for key, room in headroom.unbooked_cores(among, left).items():
            rooms.setdefault(key, {})[core_type.name] = room
    return replace(packing, most_cores=most, unbooked_cores=rooms)


def _rest(domain: Booked, packing: packing_.Packing) -> Sequence[VcpuReading]:
    """vCPUs without a booking of an instance that does not yield, since others of it have one."""
    if not any((domain.resource, r.index) in packing.placed for r in domain.readings):
        return ()
    return [r for r in domain.readings if _booking_of(domain, r).kind == "best_effort"]


def _left_alone(promise: Promise, why: str, reading: VcpuReading, topology: Topology) -> Promise:
    if promise.grant is None:
        return replace(promise, hands_off=True)
    now = topology.only_type(reading.pcpus)
    return replace(
        promise,
        grant=None,
        core_type=now.name if now else None,
        note=f"not enforced: {why}",
        hands_off=True,
    )


def _keeps_its_own(promise: Promise) -> bool:
    """Whether a vCPU has a booking of its own to defend: one that found no room has none.

    One that was packed nowhere, since nobody knows what room its Ips take, has one.
    """
    if promise.booking.kind == "best_effort":
        return False
    anywhere = promise.booking.kind == "ips" and promise.core_type is None
    return anywhere or promise.pcpu is not None


def yielding(domains: Sequence[Booked], promises: Mapping[VcpuKey, Promise]) -> dict[str, bool]:
    """Which instances shall yield to all others: those without a booking, where there are any.

    A limit keeps a booked vCPU from more than its share; that it gets as much, beside best-effort
    vCPUs that want all they can get, needs precedence. So best effort runs in what bookings leave,
    and an over-booked instance in what those leave that fit. Instances to keep hands off are not
    in the answer.
    """
    defend = {key[0] for key, promise in promises.items() if _keeps_its_own(promise)}
    enforced = any(p.grant is not None and p.grant.limits for p in promises.values())
    return {
        d.resource: enforced and d.resource not in defend for d in domains if d.hands_off is None
    }
