"""Where booked vCPUs are placed: each that finds capacity has a home on one core type.

The scheduler packs with the same function (``admission.packing``), so a booking that it admitted
finds its place. Paused instances keep the capacity that they occupy.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from msgspec import Struct, structs

from amp_nova.admission import headroom
from amp_nova.admission.packing import Demand, Packing, least_refcores, need_cores
from amp_nova.control import own_coefficients
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.hardware.effective_speed import slowing_siblings
from amp_nova.model import cpu_weight
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType, Topology


class VcpuFacts(Struct, frozen=True):
    """What decisions about one vCPU depend on: its present affinity, and the pCPUs it may use.

    ``uncounted``: why its instructions are not counted; ``None`` if they are.
    """

    number: int
    pcpus: frozenset[int]
    allowed: frozenset[int]
    uncounted: str | None = ""


class Instance(Struct, frozen=True):
    """One instance as the control stage sees it; equal values lead to equal decisions.

    ``excluded``: why it must not be changed (paused, limited elsewhere), ``None`` if it may be;
    ``cpu_weight``: what it has now, ``None`` if amp-nova must not change it; ``coefficients``: its
    vCPUs' own coefficients, by index and core type.
    """

    resource: str
    booking: Booking
    vcpus: tuple[VcpuFacts, ...]
    excluded: str | None = None
    cpu_weight: int | None = None
    coefficients: Mapping[int, Mapping[str, float]] = MappingProxyType({})

    @property
    def least_weight(self) -> bool:
        """Whether it has the CPU weight of best effort."""
        return self.cpu_weight == cpu_weight.best_effort(len(self.vcpus))

    def booking_of(self, index: int) -> VcpuBooking:
        """The booking of a vCPU; a vCPU that the booking does not include is best effort."""
        vcpus = self.booking.vcpus
        return vcpus[index] if index < len(vcpus) else VcpuBooking(index)


class Vcpu(Struct, frozen=True):
    """One vCPU of an instance, with its booking."""

    instance: Instance
    facts: VcpuFacts
    booking: VcpuBooking

    @property
    def key(self) -> VcpuKey:
        """The UUID of its instance, and its index."""
        return self.instance.resource, self.facts.number


@dataclass(frozen=True, slots=True)
class Home:
    """Where a vCPU is placed: a core type, and the pCPU that it was packed onto.

    ``pcpu``: ``None`` if it found no capacity (over-booked). ``cores``: the share of one pCPU that
    its booking needs in the worst case; ``max_cores``: the largest share that it may use with a
    soft limit or in a burst; ``coefficient``: its own coefficient of the core type, if it has one;
    ``whole_core``: the siblings of its pCPU are kept free.
    """

    core_type: str | None = None
    pcpu: int | None = None
    cores: float | None = None
    max_cores: float | None = None
    coefficient: float | None = None
    whole_core: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """All booked vCPUs of a host: their requests, and the packing of these."""

    requests: Mapping[VcpuKey, Demand]
    packing: Packing
    kept_free: frozenset[int] = frozenset()
    """Siblings of the pCPUs that have their core to themselves: nothing may run there."""

    def pcpus(self) -> dict[VcpuKey, int | None]:
        """The pCPU of each vCPU, ``None`` if it found none: input of the next packing."""
        return {key: self.packing.placed.get(key) for key in self.requests}


def without_places(
    instances: Sequence[Instance], topology: Topology, kept_free_before: frozenset[int]
) -> tuple[Instance, ...]:
    """The instances as packing and entitlements need to see them: equal while only a policy moves.

    Where a vCPU is now decides nothing if its instance has neither a booking nor a core type and is
    not excluded, unless somebody else moved it out of its allowed pCPUs or siblings of whole cores
    may have to be kept free. Such a vCPU counts as being on all its allowed pCPUs.
    """
    if kept_free_before or slowing_siblings(topology):
        return tuple(instances)
    return tuple([_without_places(i) if _anywhere(i) else i for i in instances])


def _anywhere(instance: Instance) -> bool:
    booking = instance.booking
    return not booking.booked and booking.core_type is None and instance.excluded is None


def _without_places(instance: Instance) -> Instance:
    vcpus = [
        structs.replace(v, pcpus=v.allowed) if v.pcpus <= v.allowed else v for v in instance.vcpus
    ]
    return structs.replace(instance, vcpus=tuple(vcpus))


def pack(
    instances: Sequence[Instance],
    topology: Topology,
    reserve_ratio: float,
    one_pcpu: bool,
    before: Mapping[VcpuKey, int | None],
) -> Packed:
    """Pack all booked vCPUs of a host.

    ``one_pcpu``: whether each is kept on the one pCPU that it is packed onto; ``before``: the last
    packing (``Packed.pcpus``), empty for the first one. If not all fit, those that had a place keep
    one.
    """
    made = {
        (i.resource, facts.number): request
        for i in instances
        for facts in i.vcpus
        if (request := _request(i, facts, topology, before)) is not None
    }
    packing, own = own_coefficients.pack(made.values(), topology, reserve_ratio)
    made = {
        k: structs.replace(r, coefficients=own.get(k, own_coefficients.NONE))
        for k, r in made.items()
    }
    kept_free = frozenset(s for p in packing.whole for s in topology.siblings_of(p))
    return Packed(made, _with_headroom(instances, made, packing, topology, one_pcpu), kept_free)


def _request(
    instance: Instance,
    facts: VcpuFacts,
    topology: Topology,
    before: Mapping[VcpuKey, int | None],
) -> Demand | None:
    """What one vCPU requests; ``None`` if it books nothing, or Ips that cannot be converted.

    Before the first packing, a vCPU whose affinity lies within one core type counts as placed,
    unless its instance has the weight of best effort.
    """
    booking, key = instance.booking_of(facts.number), (instance.resource, facts.number)
    refcores, own = booking.refcores, instance.coefficients.get(facts.number, own_coefficients.NONE)
    if booking.ips is not None:
        refcores, own = least_refcores(booking.ips, topology), own_coefficients.NONE
    if refcores is None:
        return None
    now, packed = topology.only_type(facts.pcpus), before.get(key)
    request = Demand(
        key=key,
        refcores=refcores,
        allowed=facts.allowed,
        core_type=instance.booking.core_type,
        current=now.name if now else None,
        pcpu=min(facts.pcpus) if len(facts.pcpus) == 1 else None,
        packed=packed,
        admitted=packed is not None if before else now is not None and not instance.least_weight,
        coefficients=own_coefficients.bounded(own, refcores, topology),
        ips=booking.ips,
    )
    if instance.excluded is None or now is None:
        return request
    # It must stay where it is, and takes capacity there if that core type is fast enough.
    return structs.replace(request, core_type=now.name) if _suffices(request, now) else request


def _type_cores(request: Demand, core_type: CoreType) -> float | None:
    """Share of one such pCPU that a vCPU needs according to the hardware's coefficient."""
    return need_cores(structs.replace(request, coefficients=own_coefficients.NONE), core_type)


def _suffices(request: Demand, core_type: CoreType) -> bool:
    need = _type_cores(request, core_type)
    return need is not None and need <= 1.0 + TOLERANCE


def _fallback_type(
    request: Demand, topology: Topology, free_cores: Mapping[int, float]
) -> CoreType | None:
    """The core type of a vCPU that found no capacity; ``None`` if it may use none.

    Of the types that are fast enough, its present one, otherwise the one that is least over-booked;
    if none is fast enough, the fastest.
    """
    usable = [
        t
        for t in topology.core_types
        if _type_cores(request, t) is not None
        and request.core_type in (None, t.name)
        and request.allowed & topology.pcpus_of(t.name)
    ]

    def excess_cores(core_type: CoreType) -> float:
        pcpus = request.allowed & topology.pcpus_of(core_type.name)
        need = _type_cores(request, core_type) or 0.0
        return (need - sum(free_cores[p] for p in pcpus)) / len(pcpus)

    enough = [t for t in usable if _suffices(request, t)]
    kept = [t for t in enough if t.name == request.current]
    if enough:
        return min(kept or enough, key=excess_cores)
    return min(usable, key=lambda t: _type_cores(request, t) or 0.0, default=None)


def place(
    request: Demand, packed: Packed, topology: Topology, one_pcpu: bool
) -> tuple[CoreType | None, int | None, frozenset[int]]:
    """The core type of a vCPU, the pCPU where it found capacity, and its affinity.

    The pCPU is ``None`` if it found no capacity, the core type if it can be enforced on none.
    """
    packing = packed.packing
    pcpu = packing.placed.get(request.key)
    if pcpu is None:
        core_type = _fallback_type(request, topology, packing.free_cores)
    else:
        core_type = topology.type_of(pcpu)
    if core_type is None:
        return None, None, frozenset()
    if pcpu is not None and (one_pcpu or pcpu in packing.whole):
        return core_type, pcpu, frozenset({pcpu})
    there = topology.pcpus_of(core_type.name)
    if not there <= request.allowed:  # else one set serves all vCPUs of the core type
        there &= request.allowed
    if there.isdisjoint(packed.kept_free) and there.isdisjoint(packing.whole):
        return core_type, pcpu, there
    return core_type, pcpu, there - packed.kept_free - packing.whole or there


def unusable(request: Demand, topology: Topology) -> str:
    """Why a booking cannot be enforced on any core type of this host."""
    if request.core_type and all(t.name != request.core_type for t in topology.core_types):
        return f"this host has no core type '{request.core_type}'"
    if not any(topology.type_of(p) for p in request.allowed):
        return "none of the pCPUs it may use is online"
    return "the coefficient of its core types is not known; run amp-nova calibrate"


def _with_headroom(
    instances: Sequence[Instance],
    requests: Mapping[VcpuKey, Demand],
    packing: Packing,
    topology: Topology,
    one_pcpu: bool,
) -> Packing:
    """The packing, with what vCPUs may use beyond their bookings (``admission.headroom``)."""
    elastic = {i.resource for i in instances if i.booking.limit == "soft" or i.booking.burst_s}
    wanted = [r for key, r in requests.items() if key[0] in elastic]
    unbooked = [(i, r) for i in instances if i.booking.booked for r in _unbooked(i, packing)]
    if not wanted and not unbooked:
        return packing
    most, left = headroom.most_cores(wanted, packing, topology, one_pcpu=one_pcpu)
    shares: dict[Hashable, dict[str, float]] = {}
    for core_type in topology.core_types:
        there = topology.pcpus_of(core_type.name)
        among = [((i.resource, r.number), r.allowed & there) for i, r in unbooked]
        for key, share in headroom.unbooked_cores(among, left).items():
            shares.setdefault(key, {})[core_type.name] = share
    return replace(packing, most_cores=most, unbooked_cores=shares)


def _unbooked(instance: Instance, packing: Packing) -> Sequence[VcpuFacts]:
    """The best-effort vCPUs of an instance of which other vCPUs have bookings that found capacity.

    The CPU weight is per instance, so these vCPUs have that of a booking.
    """
    if not any((instance.resource, r.number) in packing.placed for r in instance.vcpus):
        return ()
    return [r for r in instance.vcpus if instance.booking_of(r.number).kind == "best_effort"]
