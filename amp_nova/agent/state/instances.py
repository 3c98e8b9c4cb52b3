# SPDX-License-Identifier: Apache-2.0
"""The instances of a host: bookings, read once from flavors' extra specs, and what is in force."""

import logging
from collections.abc import Mapping

from msgspec import structs

from amp_nova.control.context import Instance, Instances
from amp_nova.exceptions import sentence
from amp_nova.flavor.extra_specs import best_effort, examine
from amp_nova.model.allocation import Allocation, Allocations
from amp_nova.model.observation import Domain, Observation

LOG = logging.getLogger(__name__)
OWN_QUOTA = "its libvirt definition sets a CPU quota: remove that quota or the booking"


def read(before: Instances, observation: Observation, *, adaptive: bool = False) -> Instances:
    """The instances of all domains; those of unchanged domains are taken from ``before``.

    ``adaptive``: whether own coefficients convert those whose flavor does not say.
    """
    instances = {}
    for reading in observation.domains:
        domain = reading.domain
        instance = before.get(domain.resource)
        if instance is None or (instance.domain is not domain and instance.domain != domain):
            instance = _read(domain, adaptive)
        instances[domain.resource] = instance
    return instances


def _read(domain: Domain, adaptive: bool) -> Instance:
    booking, errors = examine(domain.specs, domain.vcpus)
    problem = domain.problem or (sentence("; ".join(errors)) if errors else None)
    if problem:
        LOG.warning("%s is treated as best effort: %s", domain.name, problem)
    booking = booking or best_effort(domain.vcpus)
    if booking.adaptive is not None:
        adaptive = booking.adaptive
    return Instance(domain, booking, problem, adaptive)


def on_host(
    instances: Instances,
    now: Allocations,
    cpu_weights: Mapping[str, int | None],
    excluded: Mapping[str, str],
    coefficients: Mapping[str, Mapping[int, Mapping[str, float]]],
) -> tuple[Instance, ...]:
    """The instances with what changes while they run.

    ``cpu_weights``, ``excluded`` and ``coefficients`` are as in ``Instance``, by UUID.
    """
    vcpus: dict[str, dict[int, Allocation]] = {resource: {} for resource in instances}
    for (resource, index), each in now.items():
        vcpus[resource][index] = structs.replace(each, bandwidth=None, burst_us=0)
    made = []
    for resource, instance in instances.items():
        why = excluded.get(resource)
        if why is None and instance.domain.limited_elsewhere and instance.booking.booked:
            why = OWN_QUOTA
        own = coefficients.get(resource, {}) if why is None else {}
        made.append(
            structs.replace(
                instance,
                vcpus=vcpus[resource],
                excluded=why,
                cpu_weight=cpu_weights[resource],
                coefficients=own,
            )
        )
    return tuple(made)
