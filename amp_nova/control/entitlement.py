"""What every vCPU is entitled to: pCPUs, CPU bandwidth limit and CPU weight, and why.

Solution 1 of teabe2017 (section 3.1): CPU time on a core of type ``p`` counts ``coef(p)`` times, so
a vCPU that books ``b`` reference cores may use the share ``b / coef(p)`` of one such core. This is
exact because the vCPU stays on one core type at a time. A CFS bandwidth limit enforces the share.

Solution 2: a vCPU that books instructions per second needs the capacity that these take at nominal
Ips, and is placed in the same way. Its instructions are counted, and a controller sets its limit
(``control.ips_limit``, ``control.ips_controller``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec import Struct, structs

from amp_nova.admission import headroom
from amp_nova.admission.packing import Demand, need_cores
from amp_nova.control import burst, conversion, homes, ips_limit, parallel
from amp_nova.control.context import UNLIMITED, Context, Current
from amp_nova.control.conversion import FULL_SPEED, Lately
from amp_nova.control.homes import Home, Instance, Vcpu, VcpuFacts
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model import cpu_weight
from amp_nova.model.bandwidth import Bandwidth, bandwidth, period_us
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType, Topology

GovernedBy = Literal["booking", "ips", "policy", "flavor", "excluded", "none"]
"""What governs a vCPU: a booking in reference cores, the Ips controller, a best-effort policy,
``amp:core_type`` alone, somebody else (the instance is paused or limited elsewhere), or nothing."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A CPU bandwidth limit that amp-nova sets; ``bandwidth=None``: explicitly no limit.

    ``by_core_type``: for a best-effort vCPU that competes with bookings, the limit on each core
    type that a policy may choose. ``burst_s``: seconds of booked capacity that it may bank.
    """

    bandwidth: Bandwidth | None
    by_core_type: Mapping[str, Bandwidth | None] = field(default_factory=dict)
    burst_s: float = 0.0

    def on(self, core_type: CoreType | None) -> "Quota":
        """The quota on a core type; ``None``, for a vCPU on several types, gives the lowest."""
        limits = self.by_core_type
        if not limits:
            return self
        lowest = min(limits.values(), key=lambda limit: 1.0 if limit is None else limit.cores)
        limit = lowest if core_type is None else limits.get(core_type.name, lowest)
        return replace(self, bandwidth=limit)


NO_HOME = Home()


class Entitlement(Struct, frozen=True):
    """Everything that shall be in force for one vCPU, and why.

    ``allowed``: the pCPUs it may be placed on. ``pcpus``: its affinity, ``None`` to leave that
    unchanged. ``quota``: ``None`` if amp-nova must not set its limit. ``cpu_weight``: that of its
    instance, ``None`` to leave it unchanged. ``note``: what is not enforced, and why.
    """

    key: VcpuKey
    booking: VcpuBooking
    allowed: frozenset[int]
    pcpus: frozenset[int] | None = None
    quota: Quota | None = None
    cpu_weight: int | None = None
    governed_by: GovernedBy = "none"
    reason: str = ""
    note: str | None = None
    home: Home = NO_HOME

    @property
    def core_type(self) -> str | None:
        """Name of the core type it is placed on."""
        return self.home.core_type


Entitlements = Mapping[VcpuKey, Entitlement]


def entitle(instances: Sequence[Instance], context: Context) -> Entitlements:
    """The entitlement of every vCPU, booked and best effort.

    Excluded instances take capacity in the packing, but nothing of them is changed.
    """
    found = {}
    together = parallel.places(instances, context.topology)
    for instance in instances:
        for facts in instance.vcpus:
            vcpu = Vcpu(instance, facts, instance.booking_of(facts.number))
            request = context.packed.requests.get(vcpu.key)
            if vcpu.booking.ips is not None:
                made = _in_ips(vcpu, request, context)
            elif request is not None:
                made = _in_refcores(vcpu, request, context)
            else:
                made = _best_effort(vcpu, context)
            if made.governed_by == "none" and instance.resource in together:
                pcpus = made.allowed & together[instance.resource]
                made = structs.replace(made, allowed=pcpus or made.allowed)
            if instance.excluded is not None:
                made = _excluded(made, instance.excluded, facts, context.topology)
            found[vcpu.key] = made
    if not context.terms.enforce:
        return {k: structs.replace(e, pcpus=None, quota=None) for k, e in found.items()}
    weights = cpu_weights(instances, found)
    return {key: structs.replace(e, cpu_weight=weights.get(key[0])) for key, e in found.items()}


def _nothing(vcpu: Vcpu) -> Entitlement:
    """An entitlement that leaves the vCPU as it is."""
    return Entitlement(vcpu.key, vcpu.booking, vcpu.facts.allowed)


def _limit_of(
    request: Demand, core_type: CoreType, topology: Topology, share_cores: float | None = None
) -> Bandwidth | None:
    """The limit worth a booking on a core type; with ``share_cores``, the limit of that share."""
    share = share_cores or need_cores(request, core_type)
    assert share is not None  # callers pass types with a coefficient only
    return bandwidth(share, _period_us(request, topology))


def _period_us(request: Demand, topology: Topology) -> int:
    """The bandwidth period, which suits the fastest core type wherever the vCPU runs.

    So a move between core types takes one write of the limit; every write gives away up to one
    period's quota.
    """
    greatest = max(t.coefficient or 0.0 for t in topology.core_types)
    return period_us(min(1.0, request.refcores / greatest))


def _home(request: Demand, core_type: CoreType, pcpu: int | None, context: Context) -> Home:
    packing = context.packed.packing
    need = packing.needs.get(request.key)  # None if the vCPU found no capacity
    return Home(
        core_type.name,
        pcpu,
        need_cores(request, core_type) if need is None else need,
        packing.most_cores.get(request.key),
        request.coefficients.get(core_type.name),
        pcpu in packing.whole,
    )


def _in_refcores(vcpu: Vcpu, request: Demand, context: Context) -> Entitlement:
    topology = context.topology
    core_type, pcpu, pcpus = homes.place(request, context.packed, topology, context.terms.one_pcpu)
    if core_type is None:
        return structs.replace(
            _nothing(vcpu), note=f"not enforced: {homes.unusable(request, topology)}"
        )
    home = _home(request, core_type, pcpu, context)
    soft = vcpu.instance.booking.limit == "soft"
    limit = _limit_of(request, core_type, topology, home.max_cores if soft else None)
    coefficient = core_type.coefficient if home.coefficient is None else home.coefficient
    note = _note(request, coefficient or 0.0, None if soft else limit, context)
    now = context.current.get(vcpu.key, UNLIMITED)
    quota, burst_s = Quota(limit), vcpu.instance.booking.burst_s
    if burst_s and not soft and limit is not None and note is None:
        cycle_s = context.terms.cycle_s
        share = burst.share(request.refcores, home, now.banked_ref_s, cycle_s, now.bandwidth)
        chosen = now.bandwidth if share is None else bandwidth(share, limit.period_us)
        quota = Quota(chosen, burst_s=burst_s)
    elif now.lately is not None and not (burst_s or soft or note):
        quota = Quota(_converted(request, home, limit, now, _period_us(request, topology)))
    return structs.replace(
        _nothing(vcpu),
        pcpus=pcpus,
        quota=quota,
        governed_by="booking",
        reason=_reason(request, home, coefficient or 0.0, now.lately) + (", soft" if soft else ""),
        note=note,
        home=home,
    )


def _reason(request: Demand, home: Home, coefficient: float, lately: Lately | None) -> str:
    kept = 1.0 if lately is None else lately.kept_ratio
    reason = f"{request.refcores:g} refcores / {coefficient:.4g} on {home.core_type}"
    reason += "" if home.coefficient is None else " (its own coefficient)"
    reason += "" if abs(kept - 1.0) < 0.01 else f", at {kept:.2f} of its speed lately"
    return f"{reason}, a whole core" if home.whole_core else reason


def _converted(
    request: Demand, home: Home, full: Bandwidth | None, now: Current, period: int
) -> Bandwidth | None:
    """The limit according to the speed in the last cycles; ``full``: the limit at full speed."""
    cores, worst_cores, lately = full.cores if full else 1.0, home.cores or 0.0, now.lately
    limit = now.bandwidth
    share = conversion.share(request.refcores, cores, worst_cores, lately or FULL_SPEED, limit)
    if share is None and (limit is None or limit.period_us == period):
        return limit
    return bandwidth(cores if share is None else share, period)


def _note(
    request: Demand, coefficient: float, limit: Bandwidth | None, context: Context
) -> str | None:
    if (reason := context.packed.packing.unplaced.get(request.key)) is not None:
        return f"over-booked: {reason}"
    gets = limit.cores * coefficient if limit else 0.0
    if gets > request.refcores * 1.01:
        return f"may use {gets:g} refcores: the kernel accepts no limit as low as its booking"
    return None


def _best_effort(vcpu: Vcpu, context: Context) -> Entitlement:
    """A vCPU without a booking: keep it on its flavor's core type, leave its quota alone.

    If other vCPUs of its instance have bookings, it shares their weight, and is limited to unbooked
    capacity.
    """
    topology, facts = context.topology, vcpu.facts
    wanted = vcpu.instance.booking.core_type
    shares = context.packed.packing.unbooked_cores.get(vcpu.key, {})
    free = _without(facts.allowed, context.packed.kept_free) or facts.allowed
    if wanted is None and not shares:
        return _beside_whole_cores(vcpu, free, context)
    allowed = free if wanted is None else free & topology.pcpus_of(wanted)
    if not allowed:
        note = f"not enforced: no pCPU of core type '{wanted}' may be used"
        return structs.replace(_nothing(vcpu), note=note)
    made = structs.replace(_nothing(vcpu), allowed=allowed, governed_by="flavor", home=Home(wanted))
    if not shares:
        return structs.replace(made, pcpus=_kept(facts, allowed), reason=f"amp:core_type={wanted}")
    limits = {name: bandwidth(share, period_us(min(1.0, share))) for name, share in shares.items()}
    there = headroom.best_type(topology.only_type(facts.pcpus), allowed, shares, topology)
    return structs.replace(
        made,
        pcpus=_kept(facts, allowed & topology.pcpus_of(there.name)),
        quota=Quota(None, limits).on(there),
        reason="unbooked capacity",
    )


def _without(pcpus: frozenset[int], kept_free: frozenset[int]) -> frozenset[int]:
    """The pCPUs that need not be kept free; usually the same set, which costs nothing."""
    return pcpus - kept_free if kept_free else pcpus


def _beside_whole_cores(vcpu: Vcpu, free: frozenset[int], context: Context) -> Entitlement:
    """A best-effort vCPU, kept off the siblings of pCPUs that have their core to themselves.

    It may use these siblings again as soon as they need not be kept free any more.
    """
    nothing, pcpus = Entitlement(vcpu.key, vcpu.booking, free), vcpu.facts.pcpus
    before = _without(vcpu.facts.allowed, context.kept_free_before)
    if pcpus <= free and (pcpus != before or pcpus == free):
        return nothing
    reason = "the siblings of whole cores are kept free"
    kept = free if pcpus == before else pcpus & free or free
    return structs.replace(nothing, pcpus=kept, governed_by="flavor", reason=reason)


def _in_ips(vcpu: Vcpu, request: Demand | None, context: Context) -> Entitlement:
    """A vCPU that books Ips: where it is placed, and what limits it there.

    The Ips controller limits it if its instructions are counted. Otherwise the booking cannot be
    verified: either nominal Ips limit the vCPU or nothing does, and the note says so.
    """
    booking, topology, terms = vcpu.instance.booking, context.topology, context.terms
    core_type, home = None, Home(booking.core_type)
    pcpus = vcpu.facts.allowed & frozenset(p.id for p in topology.pcpus)
    if booking.core_type is not None:
        pcpus &= topology.pcpus_of(booking.core_type)
    if request is not None:
        core_type, pcpu, pcpus = homes.place(request, context.packed, topology, terms.one_pcpu)
        if core_type is not None:
            home = _home(request, core_type, pcpu, context)
    if not pcpus:
        missing = request or Demand(vcpu.key, 0.0, vcpu.facts.allowed, booking.core_type)
        return structs.replace(
            _nothing(vcpu), note=f"not enforced: {homes.unusable(missing, topology)}"
        )
    now = context.current.get(vcpu.key, UNLIMITED)
    last = now.ips_limit or now.bandwidth
    limit = ips_limit.decide(vcpu, core_type, topology, last, terms.ips_fallback)
    if booking.limit == "soft" and request is not None and core_type is not None:
        soft = _limit_of(request, core_type, topology, home.max_cores)
        limit = replace(limit, bandwidth=soft)
    if request is None and not limit.governed:  # it can be neither converted nor counted
        unlimited = _best_effort(vcpu, context)
        return structs.replace(unlimited, note=limit.unverifiable or limit.reason)
    over_booked = context.packed.packing.unplaced.get(vcpu.key)
    notes = [limit.unverifiable, over_booked and f"over-booked: {over_booked}"]
    return structs.replace(
        _nothing(vcpu),
        pcpus=pcpus if core_type is not None else _kept(vcpu.facts, pcpus),
        quota=Quota(limit.bandwidth),
        governed_by="ips" if limit.governed else "booking",
        reason=limit.reason if home.core_type is None else f"{limit.reason} on {home.core_type}",
        note="; ".join(n for n in notes if n) or None,
        home=home,
    )


def _kept(facts: VcpuFacts, pcpus: frozenset[int]) -> frozenset[int]:
    """The present affinity if it lies within these pCPUs, otherwise all of them."""
    return facts.pcpus if facts.pcpus and facts.pcpus <= pcpus else pcpus


def _excluded(made: Entitlement, why: str, facts: VcpuFacts, topology: Topology) -> Entitlement:
    """The entitlement of a vCPU that must not be changed; its capacity stays reserved."""
    if made.governed_by == "none":
        return structs.replace(made, governed_by="excluded")
    now = topology.only_type(facts.pcpus)
    return Entitlement(
        made.key,
        made.booking,
        made.allowed,
        governed_by="excluded",
        note=f"not enforced: {why}",
        home=replace(made.home, core_type=now.name if now else None),
    )


def _holds_capacity(entitlement: Entitlement) -> bool:
    """Whether a vCPU has a booking that found capacity.

    A booking in Ips that cannot be converted is not packed, and counts as one.
    """
    if entitlement.booking.kind == "best_effort":
        return False
    unpacked = entitlement.booking.kind == "ips" and entitlement.core_type is None
    return unpacked or entitlement.home.pcpu is not None


def cpu_weights(
    instances: Sequence[Instance], found: Mapping[VcpuKey, Entitlement]
) -> dict[str, int]:
    """The CPU weight of each instance whose weight amp-nova sets.

    To get its share beside best effort that uses all the time it can get, a booking needs more than
    a limit: precedence. Instances without a booking that found capacity have the least weight, if
    any of their vCPUs may run where a booking may. The others keep the weight they have; those that
    had one of amp-nova's weights get the default back.
    """
    booked = {key[0] for key, e in found.items() if _holds_capacity(e) and e.quota is not None}
    contested = frozenset[int]().union(*(e.allowed for k, e in found.items() if k[0] in booked))
    weights = {}
    for instance in instances:
        if instance.excluded is not None or instance.cpu_weight is None:
            continue
        vcpus = len(instance.vcpus)
        if instance.resource in booked:
            weights[instance.resource] = cpu_weight.booked(vcpus)
        elif any(not v.allowed.isdisjoint(contested) for v in instance.vcpus):
            weights[instance.resource] = cpu_weight.best_effort(vcpus)
        elif instance.cpu_weight in cpu_weight.ours(vcpus):
            weights[instance.resource] = cpu_weight.DEFAULT
    return weights
