# SPDX-License-Identifier: Apache-2.0
"""Where booked vCPUs are placed: each that finds capacity has a home on one core type.

The scheduler packs with the same function (``admission.packing``), so a booking that it admitted
finds its place. Paused instances keep the capacity that they occupy.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from msgspec import structs

from amp_nova.admission import headroom
from amp_nova.admission.packing import Demand, Packing, guest_of, least_refcores, need_cores
from amp_nova.control import own_coefficients
from amp_nova.control.context import Context, Home, Instance, Packed, Terms
from amp_nova.flavor.extra_specs import Booking
from amp_nova.hardware.effective_speed import slowed_by_siblings
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType, Topology

REMEDY = (
    "libvirt has one quota for all vCPUs of an instance: use [agent] writer = cgroup on such "
    "hosts, or instances with one vCPU"
)
"""What to do if a booking needs a limit per vCPU, because its limits differ or vary."""


def refusal(booking: Booking) -> str | None:
    """Why a booking cannot be enforced with one limit per instance; ``None`` if it can."""
    if len(booking.vcpus) < 2 or not booking.booked:
        return None
    if len({(v.refcores, v.ips) for v in booking.vcpus}) > 1:
        return f"the bookings of its vCPUs differ, and {REMEDY}"
    if booking.vcpus[0].ips is not None:
        return f"each of its vCPUs books instructions per second, and {REMEDY}"
    if booking.burst_s:
        return f"each of its vCPUs may burst (amp:burst_s), and {REMEDY}"
    return None


def pack(
    instances: Sequence[Instance],
    topology: Topology,
    terms: Terms,
    before: Mapping[VcpuKey, int | None],
    trials: Mapping[VcpuKey, str] = MappingProxyType({}),
) -> Packed:
    """Pack all booked vCPUs of a host.

    ``before``: the last packing (``Packed.pcpus``), empty for the first one; ``trials``: the core
    types on which vCPUs are to be measured, if there is room. If not all fit, those
    that had a place keep one. Where all vCPUs of an instance have the same limit
    (``terms.one_limit``), they are also on one core type: if the packing splits an instance, it is
    repeated with the instance on each core type in turn, from the slowest, until all its vCPUs find
    capacity. If no type has enough, the instance is over-booked on the fastest.
    """
    apart = not (terms.one_limit or topology.one_type)  # its vCPUs may be on several core types
    packed = _pack(instances, topology, terms, before, trials if apart else MappingProxyType({}))
    trial = list(instances)
    while terms.one_limit and (i := _split(trial, packed, topology)) is not None:
        instance = trial[i]
        for core_type in topology.core_types:
            there = replace(instance.booking, core_type=core_type.name)
            trial[i] = structs.replace(instance, booking=there)
            packed = _pack(trial, topology, terms, before)
            if all((instance.resource, index) in packed.packing.placed for index in instance.vcpus):
                break
    return packed


def _split(instances: Sequence[Instance], packed: Packed, topology: Topology) -> int | None:
    """The index of the first instance whose vCPUs are on several core types; ``None`` if none."""
    placed = packed.packing.placed
    for i, instance in enumerate(instances):
        keys = [(instance.resource, index) for index in instance.vcpus]
        types = {topology.type_of(placed[key]) for key in keys if key in placed} - {None}
        if instance.excluded is None and len(types) > 1:
            return i
    return None


def _pack(
    instances: Sequence[Instance],
    topology: Topology,
    terms: Terms,
    before: Mapping[VcpuKey, int | None],
    trials: Mapping[VcpuKey, str] = MappingProxyType({}),
) -> Packed:
    demands = {
        (i.resource, index): demand
        for i in instances
        for index in i.vcpus
        if (demand := _demand(i, index, topology, before)) is not None
    }
    packing, own = own_coefficients.pack(demands.values(), topology, terms.reserve_ratio)
    packing = own_coefficients.trial(
        demands.values(), packing, trials, topology, terms.reserve_ratio
    )
    demands = {
        key: structs.replace(d, coefficients=own.get(key, own_coefficients.NONE))
        for key, d in demands.items()
    }
    if topology.one_type:  # whoever found no capacity stays beside the rest of its guest
        at = {guest_of(k): topology.type_of(pcpu) for k, pcpu in packing.placed.items()}
        demands = {
            key: d
            if (there := at.get(guest_of(key))) is None
            else structs.replace(d, core_type=there.name)
            for key, d in demands.items()
        }
    kept_free = frozenset(s for p in packing.whole for s in topology.siblings_of(p))
    packing = _with_headroom(instances, demands, packing, topology, terms.one_pcpu)
    return Packed(demands, packing, kept_free)


def _demand(
    instance: Instance,
    index: int,
    topology: Topology,
    before: Mapping[VcpuKey, int | None],
) -> Demand | None:
    """What one vCPU demands; ``None`` if it books nothing, or Ips that cannot be converted.

    Before the first packing, a vCPU whose affinity is a single pCPU counts as packed there, and one
    whose affinity lies within one core type as placed, unless its instance has the weight of best
    effort.
    """
    booking, key = instance.booking_of(index), (instance.resource, index)
    refcores, own = booking.refcores, instance.coefficients.get(index, own_coefficients.NONE)
    if booking.ips is not None:
        refcores, own = least_refcores(booking.ips, topology), own_coefficients.NONE
    if refcores is None:
        return None
    allocation, packed = instance.vcpus[index], before.get(key)
    now = topology.only_type(allocation.pcpus)
    admitted = packed is not None
    if not before:
        packed = min(allocation.pcpus) if len(allocation.pcpus) == 1 else None
        admitted = now is not None and not instance.least_weight
    demand = Demand(
        key=key,
        refcores=refcores,
        allowed=allocation.allowed,
        core_type=instance.booking.core_type,
        current=now.name if now else None,
        packed=packed,
        admitted=admitted,
        coefficients=own_coefficients.bounded(own, refcores, topology),
        ips=booking.ips,
    )
    if instance.excluded is None or now is None:
        return demand
    # It must stay where it is, and takes capacity there if that core type is fast enough.
    return structs.replace(demand, core_type=now.name) if _suffices(demand, now) else demand


def _type_cores(demand: Demand, core_type: CoreType) -> float | None:
    """Share of one such pCPU that a vCPU needs according to the hardware's coefficient."""
    return need_cores(structs.replace(demand, coefficients=own_coefficients.NONE), core_type)


def _suffices(demand: Demand, core_type: CoreType) -> bool:
    need = _type_cores(demand, core_type)
    return need is not None and need <= 1.0 + TOLERANCE


def _fallback_type(
    demand: Demand, topology: Topology, free_cores: Mapping[int, float]
) -> CoreType | None:
    """The core type of a vCPU that found no capacity; ``None`` if it may use none.

    Of the types that are fast enough, its present one, otherwise the one that is least over-booked;
    if none is fast enough, the fastest.
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


def place(demand: Demand, context: Context) -> tuple[CoreType | None, Home, frozenset[int]]:
    """The core type of a booked vCPU, its home there, and its affinity.

    The core type is ``None`` if its booking can be enforced on none.
    """
    packed, topology = context.packed, context.topology
    packing = packed.packing
    pcpu = packing.placed.get(demand.key)
    if pcpu is None:
        core_type = _fallback_type(demand, topology, packing.free_cores)
    else:
        core_type = topology.type_of(pcpu)
    if core_type is None:
        return None, Home(demand.core_type), frozenset()
    home = Home(
        core_type.name,
        pcpu,
        packing.needs.get(demand.key, need_cores(demand, core_type)),
        packing.most_cores.get(demand.key),
        demand.coefficients.get(core_type.name),
        pcpu in packing.whole,
    )
    stays = context.terms.one_pcpu or home.whole_core or slowed_by_siblings(core_type)
    if pcpu is not None and stays:
        return core_type, home, frozenset({pcpu})
    there = topology.pcpus_of(core_type.name)
    if not there <= demand.allowed:  # else one set serves all vCPUs of the core type
        there &= demand.allowed
    if there.isdisjoint(packed.kept_free) and there.isdisjoint(packing.whole):
        return core_type, home, there
    return core_type, home, there - packed.kept_free - packing.whole or there


def unusable(demand: Demand, topology: Topology) -> str:
    """Why a booking cannot be enforced on any core type of this host."""
    if demand.core_type and all(t.name != demand.core_type for t in topology.core_types):
        return f"this host has no core type '{demand.core_type}'"
    if not any(topology.type_of(p) for p in demand.allowed):
        return "it may use none of the online pCPUs"
    return "the coefficient of its core types is not known; run amp-nova calibrate"


def _with_headroom(
    instances: Sequence[Instance],
    demands: Mapping[VcpuKey, Demand],
    packing: Packing,
    topology: Topology,
    one_pcpu: bool,
) -> Packing:
    """The packing, with what vCPUs may use beyond their bookings (``admission.headroom``)."""
    elastic = {i.resource for i in instances if i.booking.limit == "soft" or i.booking.burst_s}
    elastic_demands = [d for key, d in demands.items() if key[0] in elastic]
    # The CPU weight is per instance, so these vCPUs have that of a booking that found capacity.
    unbooked = [
        ((i.resource, index), now.allowed)
        for i in instances
        if any((i.resource, index) in packing.placed for index in i.vcpus)
        for index, now in i.vcpus.items()
        if i.booking_of(index).kind == "best_effort"
    ]
    if not elastic_demands and not unbooked:
        return packing
    most, left = headroom.most_cores(elastic_demands, packing, topology, one_pcpu=one_pcpu)
    shares: dict[Hashable, dict[str, float]] = {}
    for core_type in topology.core_types:
        there = topology.pcpus_of(core_type.name)
        among = [(key, allowed & there) for key, allowed in unbooked]
        for key, share in headroom.unbooked_cores(among, left).items():
            shares.setdefault(key, {})[core_type.name] = share
    return replace(packing, most_cores=most, unbooked_cores=shares)


def on_one_type(instances: Sequence[Instance], topology: Topology) -> tuple[Instance, ...]:
    """The instances, each with a core type if it cannot span several (``Topology.one_type``).

    One without a booking stays on the type it is on, or goes to the one with the fewest vCPUs per
    pCPU. Those of a booking follow the packing, and so do its other vCPUs.
    """
    if not topology.one_type:
        return tuple(instances)
    types, vcpus = {}, dict.fromkeys((t.name for t in topology.core_types), 0)
    for instance in instances:
        there = {topology.only_type(v.pcpus) for v in instance.vcpus.values()} - {None}
        now = there.pop() if len(there) == 1 else None
        name = types[instance.resource] = instance.booking.core_type or (now.name if now else None)
        if name in vcpus:
            vcpus[name] += len(instance.vcpus)
    for instance in instances:
        if types[instance.resource] is None and not instance.booking.booked:
            allowed = frozenset[int]().union(*(v.allowed for v in instance.vcpus.values()))
            usable = [n for n in vcpus if allowed & topology.pcpus_of(n)]
            if usable:
                name = min(usable, key=lambda n: vcpus[n] / len(topology.pcpus_of(n)))
                types[instance.resource], vcpus[name] = name, vcpus[name] + len(instance.vcpus)
    return tuple(
        structs.replace(i, booking=replace(i.booking, core_type=types[i.resource]))
        for i in instances
    )


def parallel_places(
    instances: Sequence[Instance], topology: Topology
) -> Mapping[str, frozenset[int]]:
    """The pCPUs for each best-effort instance that runs one parallel program, by UUID.

    The threads of such a program (``amp:parallel``) wait for each other, so a fast core adds
    nothing while the others run on slow ones. The vCPUs of an instance therefore stay on core types
    that have a pCPU for each of them (chen2014 section 2.2, principle 1). Policies give these to
    all or none of them, and owe the instance nothing on the other types. Instances that may use all
    pCPUs are left out. Empty if these pCPUs are too few for all vCPUs of these instances: a
    pCPU that two of them share would cost more than a fast core for one of them wastes.
    """
    pcpus = [topology.pcpus_of(t.name) for t in topology.core_types]
    places, vcpus = {}, 0
    for instance in instances:
        if not instance.booking.parallel or instance.booking.booked or not instance.vcpus:
            continue
        allowed = next(iter(instance.vcpus.values())).allowed
        there = [ids for some in pcpus if (ids := some & allowed)]
        enough = [ids for ids in there if len(ids) >= len(instance.vcpus)]
        if enough and len(enough) < len(there):
            places[instance.resource] = frozenset().union(*enough)
            vcpus += len(instance.vcpus)
    return places if vcpus <= len(frozenset().union(*places.values())) else {}
