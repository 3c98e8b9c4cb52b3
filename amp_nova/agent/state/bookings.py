"""The bookings of all instances, read once from their flavors' extra specs."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.flavor.extra_specs import Booking, best_effort, examine
from amp_nova.model.observation import Domain, Observation

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InstanceBooking:
    """The booking of one domain; ``problem``: why it is treated as best effort."""

    domain: Domain
    booking: Booking
    problem: str | None = None

    @property
    def varies(self) -> bool:
        """Whether its limits change from cycle to cycle: it bursts, or books Ips."""
        return bool(self.booking.burst_s) or any(v.ips for v in self.booking.vcpus)


Bookings = Mapping[str, InstanceBooking]
"""By instance UUID."""


def read(before: Bookings, seen: Observation) -> Bookings:
    """The bookings of all domains; those of unchanged domains are kept."""
    found = {}
    for reading in seen.domains:
        domain = reading.domain
        known = before.get(domain.resource)
        if known is None or known.domain != domain:
            booking, errors = examine(domain.specs, domain.vcpus)
            problem = domain.problem or "; ".join(errors) or None
            if problem:
                LOG.warning("%s is treated as best effort: %s", domain.name, problem)
            known = InstanceBooking(domain, booking or best_effort(domain.vcpus), problem)
        found[domain.resource] = known
    return found
