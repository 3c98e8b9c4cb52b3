"""Watches for other writers of the limits: one writer per quota, and no war over it."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from amp_nova.control import drift
from amp_nova.model.allocation import Grant
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import DomainReading, Observation, VcpuKey, only_ran

LOG = logging.getLogger(__name__)


class Watch:
    """Compares what was carried out with what is found, and counts the difference."""

    def __init__(self, repairs_max: int) -> None:
        self.counts: Counter[str] = Counter()
        self.moved: dict[VcpuKey, frozenset[int]] = {}
        """Where vCPUs were kept before somebody else moved them, as of the last look."""
        self._repairs_max = repairs_max
        self._expected: Mapping[VcpuKey, Grant] = {}
        self._incarnations: Mapping[str, str] = {}
        self._quarrels: dict[str, drift.Quarrel] = {}
        self._clean: dict[str, DomainReading] = {}
        """Readings that were as expected: while their limits are the same, they still are."""

    def look(
        self, seen: Observation, governed: Callable[[VcpuKey], Bandwidth | None] = lambda _: None
    ) -> None:
        """Count what somebody else changed; decide to put it right or to yield.

        ``governed`` tells the limit that the fast loop wrote last.
        """
        self.moved = {}
        for reading in seen.domains:
            resource = reading.domain.resource
            clean = self._clean.get(resource)
            if clean is not None and only_ran(clean, reading):
                continue
            if self._incarnations.get(resource) != reading.domain.incarnation:
                continue
            if resource in seen.held:  # somebody else asked to change it
                continue
            found, steady = self._foreign(resource, reading, governed)
            if found:
                self.counts.update(found)
                self._quarrel(resource, reading.domain.name, seen.time_ns / 1e9)
            elif steady:
                self._clean[resource] = reading

    def _foreign(
        self,
        resource: str,
        reading: DomainReading,
        governed: Callable[[VcpuKey], Bandwidth | None],
    ) -> tuple[list[str], bool]:
        """What somebody else changed of a domain, and whether the fast loop changes nothing."""
        found: list[str] = []
        steady = True
        for vcpu in reading.vcpus:
            kept = self._expected.get((resource, vcpu.index))
            if kept is not None and kept.governed:
                steady = False
                kept = replace(kept, bandwidth=governed(kept.key) or vcpu.bandwidth)
            if kept is not None and (foreign := drift.foreign(kept, vcpu)):
                found += foreign
                if "affinity" in foreign:
                    self.moved[kept.key] = kept.pcpus
        return found, steady

    def _quarrel(self, resource: str, name: str, now_s: float) -> None:
        before = self._quarrels.get(resource, drift.Quarrel())
        after = drift.quarrel(before, now_s, self._repairs_max)
        self._quarrels[resource] = after
        does = "left alone for a while" if after.yielded_until_s > now_s else "put right"
        LOG.warning("%s: somebody else changed its limits: %s", name, does)

    def yields(self, resource: str, now_ns: int) -> bool:
        """Whether an instance is left to the other writer for now."""
        quarrel = self._quarrels.get(resource)
        return quarrel is not None and now_ns / 1e9 < quarrel.yielded_until_s

    def expect(self, seen: Observation, grants: Iterable[Grant]) -> None:
        """Remember what holds from now on, and forget domains that are gone."""
        self._incarnations = {d.domain.resource: d.domain.incarnation for d in seen.domains}
        self._expected = {g.key: g for g in grants}
        self._clean = {}
        if self._quarrels:
            alive = self._incarnations
            self._quarrels = {r: q for r, q in self._quarrels.items() if r in alive}
