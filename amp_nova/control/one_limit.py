"""Bookings on hosts where all vCPUs of an instance share one limit, as libvirt's quota requires.

All vCPUs of an instance then have to run on one core type. Bookings that need a limit per vCPU are
not enforced: those that differ between vCPUs, and those whose limit depends on what the vCPU does.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from amp_nova.control import entitlement, homes
from amp_nova.control.context import Context
from amp_nova.control.entitlement import Entitlements
from amp_nova.control.homes import Instance, Packed
from amp_nova.flavor.extra_specs import Booking
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import Topology

REMEDY = (
    "libvirt has one quota for all vCPUs of an instance: use [agent] writer = cgroup on such "
    "hosts, or instances with one vCPU"
)


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
    reserve_ratio: float,
    one_pcpu: bool,
    before: Mapping[VcpuKey, int | None],
) -> Packed:
    """``homes.pack``, with all vCPUs of an instance on one core type.

    If the packing splits an instance, it is repeated with the instance on each core type in turn,
    from the slowest, until all its vCPUs find capacity. If no type has enough, the instance is
    over-booked on the fastest.
    """
    rest = (topology, reserve_ratio, one_pcpu, before)
    found = homes.pack(instances, *rest)
    chosen = list(instances)
    while (i := _split(chosen, found, topology)) is not None:
        instance = chosen[i]
        for core_type in topology.core_types:
            there = replace(instance.booking, core_type=core_type.name)
            chosen[i] = structs.replace(instance, booking=there)
            found = homes.pack(chosen, *rest)
            if all((instance.resource, v.number) in found.packing.placed for v in instance.vcpus):
                break
    return found


def _split(instances: Sequence[Instance], packed: Packed, topology: Topology) -> int | None:
    """The index of the first instance whose vCPUs are on several core types; ``None`` if none."""
    placed = packed.packing.placed
    for i, instance in enumerate(instances):
        keys = [(instance.resource, v.number) for v in instance.vcpus]
        types = {topology.type_of(placed[key]) for key in keys if key in placed} - {None}
        if instance.excluded is None and len(types) > 1:
            return i
    return None


def entitle(instances: Sequence[Instance], context: Context) -> Entitlements:
    """``entitlement.entitle``, with the highest limit of an instance's vCPUs for all of them.

    Their limits differ slightly if busy siblings slow some of them down.
    """
    entitlements = entitlement.entitle(instances, context)
    limits: dict[str, set[Bandwidth | None]] = {}
    for (resource, _), made in entitlements.items():
        if made.quota is not None:
            limits.setdefault(resource, set()).add(made.quota.bandwidth)
    several = {resource: _greatest(found) for resource, found in limits.items() if len(found) > 1}
    return {
        key: structs.replace(made, quota=replace(made.quota, bandwidth=several[key[0]]))
        if made.quota is not None and key[0] in several
        else made
        for key, made in entitlements.items()
    }


def _greatest(limits: Collection[Bandwidth | None]) -> Bandwidth | None:
    """The highest of these limits; ``None``, no limit, is the highest of all."""
    known = [limit for limit in limits if limit is not None]
    return max(known, key=lambda limit: limit.cores) if len(known) == len(limits) else None
