"""The bookings of all instances, read once from their flavors' extra specs."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.control import homes
from amp_nova.control.context import Instance, VcpuFacts
from amp_nova.exceptions import sentence
from amp_nova.flavor.extra_specs import Booking, best_effort, examine
from amp_nova.model.allocation import Allocations
from amp_nova.model.observation import Domain, Observation

LOG = logging.getLogger(__name__)
OWN_QUOTA = "its libvirt definition sets a CPU quota: remove that quota or the booking"


@dataclass(frozen=True, slots=True)
class InstanceBooking:
    """The booking of one domain; ``problem``: why it is treated as best effort, if it is.

    To a ``Booking``, which a flavor alone determines, it adds what the domain and the operator do:
    ``adaptive``: the own coefficients of its vCPUs convert its booking.
    """

    domain: Domain
    booking: Booking
    problem: str | None = None
    adaptive: bool = False


Bookings = Mapping[str, InstanceBooking]
"""Bookings by instance UUID."""


def read(before: Bookings, observation: Observation, *, adaptive: bool = False) -> Bookings:
    """The bookings of all domains; those of unchanged domains are taken from ``before``.

    ``adaptive``: whether own coefficients convert those whose flavor does not say.
    """
    bookings = {}
    for reading in observation.domains:
        domain = reading.domain
        booking = before.get(domain.resource)
        if booking is None or (booking.domain is not domain and booking.domain != domain):
            booking = _read(domain, adaptive)
        bookings[domain.resource] = booking
    return bookings


def _read(domain: Domain, adaptive: bool) -> InstanceBooking:
    booking, errors = examine(domain.specs, domain.vcpus)
    problem = domain.problem or (sentence("; ".join(errors)) if errors else None)
    if problem:
        LOG.warning("%s is treated as best effort: %s", domain.name, problem)
    booking = booking or best_effort(domain.vcpus)
    if booking.adaptive is not None:
        adaptive = booking.adaptive
    return InstanceBooking(domain, booking, problem, adaptive)


def refused(bookings: Bookings) -> dict[str, str]:
    """By UUID, why a booking cannot be enforced if all vCPUs of an instance share one limit."""
    reasons = {r: homes.refusal(instance.booking) for r, instance in bookings.items()}
    return {resource: why for resource, why in reasons.items() if why is not None}


def instances(
    bookings: Bookings,
    now: Allocations,
    cpu_weights: Mapping[str, int | None],
    excluded: Mapping[str, str],
    coefficients: Mapping[str, Mapping[int, Mapping[str, float]]],
) -> tuple[Instance, ...]:
    """The instances as the control stage sees them.

    ``cpu_weights``, ``excluded`` and ``coefficients`` are as in ``Instance``, by UUID.
    """
    vcpus: dict[str, list[VcpuFacts]] = {resource: [] for resource in bookings}
    for (resource, index), allocation in now.items():
        facts = VcpuFacts(index, allocation.pcpus, allocation.allowed, allocation.uncounted)
        vcpus[resource].append(facts)
    made = []
    for resource, instance in bookings.items():
        booking, why = instance.booking, excluded.get(resource)
        if why is None and instance.domain.limited_elsewhere and booking.booked:
            why = OWN_QUOTA
        own = coefficients.get(resource, {}) if why is None else {}
        of_all = tuple(vcpus[resource])
        made.append(Instance(resource, booking, of_all, why, cpu_weights[resource], own))
    return tuple(made)
