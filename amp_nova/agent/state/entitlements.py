"""What everybody is promised, from one cycle to the next."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from amp_nova.agent.state.foreign_changes import Watch
from amp_nova.agent.state.profiles import Estimates
from amp_nova.control import entitlement
from amp_nova.control.entitlement import Booked, Promise, Terms
from amp_nova.flavor.extra_specs import Booking, best_effort, examine
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import (
    Domain,
    DomainReading,
    Observation,
    VcpuKey,
    VcpuReading,
    only_ran,
)

LOG = logging.getLogger(__name__)
GOVERNED = Bandwidth(0, 1)
"""Stands for whatever limit the fast loop has set."""


class _Basis(NamedTuple):
    """What promises rest on of a domain: its reading, of which only ``facts`` matter."""

    reading: DomainReading
    facts: tuple[Domain, str | None, Mapping[int, Mapping[str, float]], str | None, object]


class Promises:
    """Works them out anew only when what they rest on has changed."""

    def __init__(
        self,
        terms: Terms,
        watch: Watch,
        estimates: Estimates,
        limit: Callable[[VcpuKey], Bandwidth | None],
    ) -> None:
        """``limit``: what the fast loop wrote last, of a vCPU that it governs."""
        self.yielding: Mapping[str, bool] = {}
        """Who shall yield to all others, by instance."""
        self._terms = terms
        self._watch = watch
        self._estimates = estimates
        self._limit = limit
        self._bookings: dict[str, tuple[Domain, Booking, str | None]] = {}
        self._promised: tuple[object, dict[VcpuKey, Promise]] = (None, {})
        self._basis: dict[str, _Basis] = {}

    def forget_but(self, alive: Iterable[str]) -> None:
        """Forget what is gone."""
        self._bookings = {r: self._bookings[r] for r in alive if r in self._bookings}

    def booking_of(self, resource: str) -> Booking:
        """The booking of an instance that is promised something."""
        return self._bookings[resource][1]

    def booking(self, domain: Domain) -> tuple[Booking, str | None]:
        """A domain's booking, read once; and why it is treated as best effort, if it has none."""
        known = self._bookings.get(domain.resource)
        if known is None or (known[0] is not domain and known[0] != domain):
            booking, errors = examine(domain.specs, domain.vcpus)
            problem = domain.problem or "; ".join(errors) or None
            if problem:
                LOG.warning("%s is treated as best effort: %s", domain.name, problem)
            known = (domain, booking or best_effort(domain.vcpus), problem)
            self._bookings[domain.resource] = known
        return known[1], known[2]

    def of(self, seen: Observation, *, governs: bool = False) -> Mapping[VcpuKey, Promise]:
        """What every vCPU is promised; ``governs``: whether the fast loop sets some limits."""
        if governs:
            self._basis = {}
        basis = [self._rest(seen, d) for d in seen.domains]
        # What others moved is told apart by the watch, not by the reading.
        self._basis = {} if self._watch.moved else {b.reading.domain.resource: b for b in basis}
        rests_on = (seen.topology, [b.facts for b in basis])
        if rests_on != self._promised[0]:
            domains, before = [self._booked(b) for b in basis], self._promised[1]
            made = entitlement.promises(domains, seen.topology, self._terms, before)
            self._promised = (rests_on, made)
            self.yielding = entitlement.yielding(domains, made)
        return self._promised[1]

    def _rest(self, seen: Observation, reading: DomainReading) -> _Basis:
        """What promises rest on of a domain; the same object as long as nothing changed."""
        domain, why = reading.domain, self._hands_off(seen, reading.domain)
        own = self._estimates.own(domain) if why is None else {}
        kept = self._basis.get(domain.resource)
        if (
            kept is not None
            and kept.facts[1:3] == (why, own)
            and (kept.reading is reading or only_ran(kept.reading, reading))
        ):
            return kept
        vcpus = [
            (v.index, v.pcpus, v.allowed, self._fixed(domain, v), v.counts is None)
            for v in reading.vcpus
        ]
        return _Basis(reading, (domain, why, own, reading.failure, vcpus))

    def _booked(self, basis: _Basis) -> Booked:
        """A domain as the contract sees it, its vCPUs where they were before others moved them."""
        reading, (domain, why, own, *_) = basis
        vcpus, moved = reading.vcpus, self._watch.moved
        if moved and why is None:
            places = ((v, moved.get((domain.resource, v.index), v.pcpus)) for v in vcpus)
            vcpus = tuple(replace(v, pcpus=pcpus) for v, pcpus in places)
        booking, yields = self.booking(domain)[0], reading.yields is True
        return Booked(domain.resource, booking, vcpus, why, yields, own)

    def _hands_off(self, seen: Observation, domain: Domain) -> str | None:
        if (why := seen.held.get(domain.resource)) is not None:
            return why
        if domain.limited_elsewhere and self.booking(domain)[0].booked:
            return "its definition has a CPU quota of its own: remove that or the booking"
        if self._watch.yields(domain.resource, seen.time_ns):
            return "somebody else keeps changing its limits: use 'amp-nova pause' to do so by hand"
        return None

    def _fixed(self, domain: Domain, vcpu: VcpuReading) -> Bandwidth | None:
        """The limit of a vCPU, as far as it stays what it is between two cycles."""
        governed = self._limit((domain.resource, vcpu.index)) is not None
        return GOVERNED if governed and vcpu.bandwidth is not None else vcpu.bandwidth
