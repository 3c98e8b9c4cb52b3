# SPDX-License-Identifier: Apache-2.0
"""What every vCPU is entitled to: pCPUs, a share of their time, and CPU weight, and why.

Solution 1 of teabe2017 (section 3.1): CPU time on a core of type ``p`` counts ``coef(p)`` times, so
a vCPU that books ``b`` reference cores may use the share ``b / coef(p)`` of one such core. This is
exact because the vCPU stays on one core type at a time.

Solution 2: a vCPU that books instructions per second needs the capacity that these take at nominal
Ips, and is placed in the same way. What its CPU time is worth is counted instead of calibrated.

``control.limit`` turns shares into CFS bandwidth limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from msgspec import Struct, structs

from amp_nova.admission import headroom
from amp_nova.admission.packing import Demand, need_cores
from amp_nova.control import homes
from amp_nova.control.context import MOVED, Context, Home, Instance, Share
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.hardware.effective_speed import slowed_by_siblings
from amp_nova.model import cpu_weight
from amp_nova.model.allocation import Allocation
from amp_nova.model.bandwidth import (
    PERIOD_MAX_US,
    PERIOD_USUAL_MAX_US,
    TOLERANCE,
    Bandwidth,
    bandwidth,
    period_us,
)
from amp_nova.model.delivered import IPS_UNKNOWN
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType, Topology

GovernedBy = Literal["booking", "ips", "policy", "flavor", "excluded", "none"]
"""What governs a vCPU: a booking, its counted instructions, a best-effort policy,
``amp:core_type`` alone, somebody else (the instance is paused or limited elsewhere), or nothing."""

STAGGER_RATIO = 0.15
"""By how much the bandwidth periods on the threads of a core differ. With equal periods, two vCPUs
that run half of the time overlap for 0.14 to 0.86 of it, depending on when the periods began; with
this difference, for 0.47 to 0.53 in every second (``test_siblings_real``)."""


class Entitlement(Struct, frozen=True):
    """Everything that shall be in force for one vCPU, and why: a booking, decided.

    ``allowed``: the pCPUs it may be placed on. ``pcpus``: its affinity, ``None`` to leave that
    unchanged. ``share``: what it may use, ``None`` if amp-nova must not limit it; ``limit``: the
    CPU bandwidth limit that follows from it (``control.limit``), ``None`` for no limit, and
    ``banked_s``: unused seconds of its booking that it may still use. ``cpu_weight``: that of its
    instance, ``None`` to leave it unchanged. ``note``: what is not enforced, and why;
    ``ineffective``: whether because its limit is written, and something else decides.
    """

    key: VcpuKey
    booking: VcpuBooking
    allowed: frozenset[int]
    pcpus: frozenset[int] | None = None
    cpu_weight: int | None = None
    governed_by: GovernedBy = "none"
    reason: str = ""
    note: str | None = None
    home: Home = Home()
    share: Share | None = None
    limit: Bandwidth | None = None
    banked_s: float = 0.0
    ineffective: bool = False

    @property
    def core_type(self) -> str | None:
        """Name of the core type it is placed on."""
        return self.home.core_type


Entitlements = Mapping[VcpuKey, Entitlement]


def entitle(instances: Sequence[Instance], context: Context) -> Entitlements:
    """The entitlement of every vCPU, booked and best effort, still without limits.

    Excluded instances take capacity in the packing, but nothing of them is changed.
    """
    entitlements = {}
    together = homes.parallel_places(instances, context.topology)
    for instance in instances:
        for index, now in instance.vcpus.items():
            entitlement = _entitled(instance, index, context)
            if entitlement.governed_by == "none" and instance.resource in together:
                pcpus = entitlement.allowed & together[instance.resource]
                entitlement = structs.replace(entitlement, allowed=pcpus or entitlement.allowed)
            if instance.excluded is not None:
                entitlement = _excluded(entitlement, instance, now, context)
            entitlements[entitlement.key] = entitlement
    entitlements |= _ineffective(instances, entitlements)
    weights = cpu_weights(instances, entitlements, placing=context.placing)
    return {k: structs.replace(e, cpu_weight=weights.get(k[0])) for k, e in entitlements.items()}


def _entitled(instance: Instance, index: int, context: Context) -> Entitlement:
    key, now = (instance.resource, index), instance.vcpus[index]
    nothing = Entitlement(key, instance.booking_of(index), now.allowed)  # leaves it as it is
    demand = context.packed.demands.get(key)
    if nothing.booking.ips is not None:
        return _in_ips(nothing, instance.booking, now, demand, context)
    if demand is None:
        return _best_effort(nothing, instance.booking, now, context)
    return _in_refcores(nothing, demand, instance.booking, context)


def _period_us(demand: Demand, home: Home, topology: Topology) -> int:
    """The bandwidth period, which suits the fastest core type wherever the vCPU runs.

    So a move between core types takes one write of the limit; every write gives away up to one
    period's quota.

    Periods differ between the hardware threads of a core (``STAGGER_RATIO``): vCPUs that are
    throttled in step would overlap always or never, and the overlap decides their speed.
    """
    greatest = max(t.coefficient or 0.0 for t in topology.core_types)
    period = period_us(min(1.0, demand.refcores / greatest))
    core_type = None if home.pcpu is None else topology.type_of(home.pcpu)
    if home.pcpu is None or core_type is None or not slowed_by_siblings(core_type):
        return period
    thread = sum(sibling < home.pcpu for sibling in topology.siblings_of(home.pcpu))
    return min(PERIOD_MAX_US, round(period * (1.0 + STAGGER_RATIO * thread)))


def _in_refcores(
    nothing: Entitlement, demand: Demand, booking: Booking, context: Context
) -> Entitlement:
    core_type, home, pcpus = homes.place(demand, context)
    if core_type is None:
        why = homes.unusable(demand, context.topology)
        return structs.replace(nothing, note=f"not enforced: {why}")
    cores = need_cores(demand, core_type)
    assert cores is not None  # its home is on a type with a coefficient
    period, soft = _period_us(demand, home, context.topology), booking.limit == "soft"
    limit = None if soft else bandwidth(cores, period)
    coefficient = (core_type.coefficient if home.coefficient is None else home.coefficient) or 0.0
    note = _note(demand, limit, coefficient, context)
    reason = f"{demand.refcores:g} refcores / {coefficient:.4g} on {home.core_type}"
    reason += "" if home.coefficient is None else " (its own coefficient)"
    reason += ", a whole core" if home.whole_core else ""
    if soft:
        share = Share(home.max_cores or cores, period)
    elif note is not None:
        share = Share(cores, period)
    else:
        share = Share(cores, period, "speed", booking.burst_s)
    return structs.replace(
        nothing,
        pcpus=pcpus,
        share=share,
        governed_by="booking",
        reason=reason + (", soft" if soft else ""),
        note=note,
        home=home,
    )


def _note(
    demand: Demand, limit: Bandwidth | None, coefficient: float, context: Context
) -> str | None:
    if (reason := context.packed.packing.unplaced.get(demand.key)) is not None:
        return f"over-booked: {reason}"
    gets = limit.cores * coefficient if limit else 0.0
    if gets > demand.refcores * 1.01:
        return f"may use {gets:g} refcores: the kernel accepts no limit as low as its booking"
    return None


def _best_effort(
    nothing: Entitlement, booking: Booking, now: Allocation, context: Context
) -> Entitlement:
    """A vCPU without a booking: keep it on its flavor's core type, leave its quota alone.

    If other vCPUs of its instance have bookings, it shares their weight, and is limited to unbooked
    capacity.
    """
    topology, core_type = context.topology, booking.core_type
    shares = context.packed.packing.unbooked_cores.get(nothing.key, {})
    free = _without(now.allowed, context.packed.kept_free) or now.allowed
    if core_type is None and not shares:
        return _beside_whole_cores(nothing, now, free, context)
    allowed = free if core_type is None else free & topology.pcpus_of(core_type)
    if not allowed:
        note = f"not enforced: no pCPU of core type '{core_type}' may be used"
        return structs.replace(nothing, note=note)
    made = structs.replace(nothing, allowed=allowed, governed_by="flavor", home=Home(core_type))
    if not shares:
        return structs.replace(made, pcpus=_kept(now, allowed), reason=f"amp:core_type={core_type}")
    there = headroom.best_type(topology.only_type(now.pcpus), allowed, shares, topology)
    return structs.replace(
        made,
        pcpus=_kept(now, allowed & topology.pcpus_of(there.name)),
        share=Share(by_core_type=shares),
        reason="unbooked capacity",
    )


def _without(pcpus: frozenset[int], kept_free: frozenset[int]) -> frozenset[int]:
    """The pCPUs that need not be kept free; usually the same set, which costs nothing."""
    return pcpus - kept_free if kept_free else pcpus


def _beside_whole_cores(
    nothing: Entitlement, now: Allocation, free: frozenset[int], context: Context
) -> Entitlement:
    """A best-effort vCPU, kept off the siblings of pCPUs that have their core to themselves.

    It may use these siblings again as soon as they need not be kept free any more.
    """
    nothing, pcpus = structs.replace(nothing, allowed=free), now.pcpus
    if pcpus == _without(now.allowed, context.kept_free_before):
        affinity = free
    else:  # somebody else chose them
        affinity = _without(pcpus, context.packed.kept_free) or free
    if affinity == pcpus:
        return nothing
    reason = "the siblings of whole cores are kept free"
    return structs.replace(nothing, pcpus=affinity, governed_by="flavor", reason=reason)


def _in_ips(
    nothing: Entitlement,
    booking: Booking,
    now: Allocation,
    demand: Demand | None,
    context: Context,
) -> Entitlement:
    """A vCPU that books Ips: where it is placed, and what limits it there."""
    topology, core_type, home = context.topology, None, Home(booking.core_type)
    pcpus = now.allowed & frozenset(p.id for p in topology.pcpus)
    if booking.core_type is not None:
        pcpus &= topology.pcpus_of(booking.core_type)
    if demand is not None:
        core_type, home, pcpus = homes.place(demand, context)
    if not pcpus:
        missing = demand or Demand(nothing.key, 0.0, now.allowed, booking.core_type)
        return structs.replace(nothing, note=f"not enforced: {homes.unusable(missing, topology)}")
    share, reason, note = _ips_share(nothing.booking.ips or 0.0, booking, now, core_type, home)
    if demand is not None and share.cores is not None:
        share = structs.replace(share, period_us=_period_us(demand, home, topology))
    counted = share.follows == "counts"
    if demand is None and not counted:  # it can be neither converted nor counted
        unlimited = _best_effort(nothing, booking, now, context)
        return structs.replace(unlimited, note=note or reason)
    over_booked = context.packed.packing.unplaced.get(nothing.key)
    notes = [note, over_booked and f"over-booked: {over_booked}"]
    return structs.replace(
        nothing,
        pcpus=pcpus if core_type is not None else _kept(now, pcpus),
        share=share,
        governed_by="ips" if counted else "booking",
        reason=reason if home.core_type is None else f"{reason} on {home.core_type}",
        note="; ".join(n for n in notes if n) or None,
        home=home,
    )


def _ips_share(
    ips: float, booking: Booking, now: Allocation, core_type: CoreType | None, home: Home
) -> tuple[Share, str, str | None]:
    """The share of a vCPU that books Ips, the reason for it, and why it is not verifiable, if so.

    ``core_type``: where it shall run; ``None`` if its booking cannot be converted to capacity.
    """
    nominal = core_type.nominal_ips if core_type else None
    cores, note = ips / (nominal or IPS_UNKNOWN), None
    if now.uncounted is not None:
        because = f" ({now.uncounted})" if now.uncounted else ""
        note = f"unverifiable: its instructions are not counted{because}"
    if booking.limit == "soft":
        return Share(home.max_cores or cores if nominal else None), f"{ips:g} Ips, soft", note
    if note is None:
        share = Share(cores, PERIOD_USUAL_MAX_US, "counts", booking.burst_s)
        return share, f"{ips:g} Ips, enforced by counting", None
    if nominal is None:
        note = f"{note}, and no nominal Ips are known: run amp-nova calibrate"
        return Share(), f"{ips:g} Ips, not limited", note
    note = f"{note}, so nominal Ips limit it"
    return Share(cores), f"{ips:g} Ips / {nominal:g} nominal Ips", note


def _ineffective(
    instances: Sequence[Instance], entitlements: Entitlements
) -> dict[VcpuKey, Entitlement]:
    """Those of bookings whose limit something else makes ineffective, with a note that says what.

    No CPU bandwidth limit applies to a real-time class; and a limit of a group bounds all in it.
    """
    vcpus = [((i.resource, index), now) for i in instances for index, now in i.vcpus.items()]
    need_cores_in: dict[str, float] = {}
    for key, now in vcpus:
        for group, _ in now.ceilings:
            cores = entitlements[key].home.cores or 0.0
            need_cores_in[group] = need_cores_in.get(group, 0.0) + cores
    hard = {i.resource for i in instances if i.booking.limit != "soft"}
    found = {}
    for key, now in vcpus:
        entitlement, why = entitlements[key], None
        if entitlement.share is None or entitlement.booking.kind == "best_effort":
            continue
        for group, limit in now.ceilings:
            if why is None and need_cores_in[group] > limit.cores + TOLERANCE:
                why = (
                    f"ineffective: the limit of {group} is {limit.cores:.4g} cores "
                    f"({limit.quota_us}/{limit.period_us} us), and the vCPUs in it need "
                    f"{need_cores_in[group]:.4g}"
                )
        if now.realtime and key[0] in hard and (entitlement.share.cores or 0.0) < 1.0:
            why = "ineffective: its thread has a real-time class, to which no limit applies"
        if why is not None:
            note = why if entitlement.note is None else f"{entitlement.note}; {why}"
            found[key] = structs.replace(entitlement, note=note, ineffective=True)
    return found


def _kept(now: Allocation, pcpus: frozenset[int]) -> frozenset[int]:
    """The present affinity if it lies within these pCPUs, otherwise all of them."""
    return now.pcpus if now.pcpus and now.pcpus <= pcpus else pcpus


def _excluded(
    entitlement: Entitlement, instance: Instance, now: Allocation, context: Context
) -> Entitlement:
    """The entitlement of a vCPU that must not be changed; its capacity stays reserved.

    Where somebody else decides what its affinity is, its QEMU may, so its limit still falls.
    """
    if entitlement.governed_by == "none":
        return structs.replace(entitlement, governed_by="excluded")
    core_type, share = context.topology.only_type(now.pcpus), None
    if instance.excluded == MOVED and instance.booking.limit != "soft":
        on = instance.vcpus.values() if context.terms.one_limit else (now,)
        share = _lowest(entitlement, frozenset().union(*(v.pcpus for v in on)), context.topology)
    return Entitlement(
        entitlement.key,
        entitlement.booking,
        entitlement.allowed,
        governed_by="excluded",
        reason="" if share is None else "no more than its booking on the fastest of its pCPUs",
        note=f"not enforced: {instance.excluded}",
        home=replace(entitlement.home, core_type=core_type.name if core_type else None),
        share=share,
    )


def _lowest(entitlement: Entitlement, pcpus: frozenset[int], topology: Topology) -> Share | None:
    """The lowest of a vCPU's shares on the core types of these pCPUs; ``None`` if none is known."""
    share, types = entitlement.share, {topology.type_of(pcpu) for pcpu in pcpus} - {None}
    if share is None:
        return None
    cores = [share_cores(entitlement, core_type) for core_type in types if core_type is not None]
    known = [each for each in cores if each is not None]
    return Share(min(known), share.period_us, "falls") if known else None


def share_cores(entitlement: Entitlement, core_type: CoreType) -> float | None:
    """The share of one such pCPU that a booking is worth; ``None`` if that is unknown."""
    booking, home, share = entitlement.booking, entitlement.home, entitlement.share
    if share is not None and share.by_core_type:
        return share.on(core_type)
    if booking.ips is not None:
        return booking.ips / core_type.nominal_ips if core_type.nominal_ips else None
    there = core_type.name == home.core_type and entitlement.governed_by != "excluded"
    if home.cores is not None and there:
        return home.cores
    if booking.refcores is None or not core_type.coefficient:
        return None
    return booking.refcores / core_type.coefficient


def _holds_capacity(entitlement: Entitlement) -> bool:
    """Whether a vCPU has a booking that found capacity.

    A booking in Ips that cannot be converted is not packed, and counts as one.
    """
    if entitlement.booking.kind == "best_effort":
        return False
    unpacked = entitlement.booking.kind == "ips" and entitlement.core_type is None
    return unpacked or entitlement.home.pcpu is not None


def cpu_weights(
    instances: Sequence[Instance], entitlements: Entitlements, *, placing: bool
) -> dict[str, int]:
    """The CPU weight of each instance whose weight amp-nova sets.

    To get its share beside best effort that uses all the time it can get, a booking needs more than
    a limit: precedence. Instances without a booking that found capacity have the least weight, if
    any of their vCPUs may run where a booking may. Where a policy is ``placing`` the others, it
    counts on equal time for each vCPU, so their weight follows their vCPUs. The rest keep the
    weight they have; those that had one of amp-nova's weights get the default back.
    """
    booked = {key[0] for key, e in entitlements.items() if _holds_capacity(e) and e.share}
    contested = frozenset[int]().union(
        *(e.allowed for k, e in entitlements.items() if k[0] in booked)
    )
    weights = {}
    for instance in instances:
        if instance.excluded is not None or instance.cpu_weight is None:
            continue
        vcpus = len(instance.vcpus)
        if instance.resource in booked:
            weights[instance.resource] = cpu_weight.booked(vcpus)
        elif any(not v.allowed.isdisjoint(contested) for v in instance.vcpus.values()):
            weights[instance.resource] = cpu_weight.best_effort(vcpus)
        elif placing and any(len(v.allowed) > 1 for v in instance.vcpus.values()):
            weights[instance.resource] = cpu_weight.placed(vcpus)
        elif instance.cpu_weight in cpu_weight.ours(vcpus):
            weights[instance.resource] = cpu_weight.DEFAULT
    return weights
