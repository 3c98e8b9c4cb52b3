"""Limits and affinities that somebody else changed: seen, counted, repaired a few times, then left.

One quota has one writer. Somebody who keeps changing what amp-nova set is not fought: after a few
repairs within a minute the instance is excluded for a while, and the log says so.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from amp_nova.control.entitlement import Entitlement
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import DomainReading, Observation, VcpuKey, VcpuReading

REPAIRS_WITHIN_S = 60.0
EXCLUDED_S = 300.0
EXCLUDED = "somebody else keeps changing its limits: use 'amp-nova pause' to do so by hand"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Foreign changes of one instance that were repaired lately, by time, in seconds."""

    repairs_s: tuple[float, ...] = ()
    excluded_until_s: float = 0.0

    def repaired(self, now_s: float, repairs_max: int) -> "Backoff":
        """After one more repair; beyond ``repairs_max`` within a minute, excluded for a while."""
        recent = tuple(t for t in self.repairs_s if now_s - t < REPAIRS_WITHIN_S)
        if len(recent) >= repairs_max:
            return Backoff((), now_s + EXCLUDED_S)
        return Backoff((*recent, now_s))


@dataclass(frozen=True, slots=True)
class ForeignChanges:
    """What shall be in force since the last cycle, and what was found to differ.

    ``expected`` and ``incarnations`` are of the last cycle, ``moved`` (where vCPUs were kept before
    somebody moved them) and ``instances`` (libvirt names by UUID) of the last comparison;
    ``counts``: foreign changes so far, by ``quota`` and ``affinity``.
    """

    expected: Mapping[VcpuKey, Entitlement] = field(default_factory=dict)
    incarnations: Mapping[str, str] = field(default_factory=dict)
    moved: Mapping[VcpuKey, frozenset[int]] = field(default_factory=dict)
    instances: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    backoffs: Mapping[str, Backoff] = field(default_factory=dict)

    def excluded(self, resource: str, now_ns: int) -> bool:
        """Whether an instance is left to the other writer for now."""
        backoff = self.backoffs.get(resource)
        return backoff is not None and now_ns / 1e9 < backoff.excluded_until_s


def differences(
    expected: Entitlement, reading: VcpuReading, ips_limit: Bandwidth | None = None
) -> tuple[str, ...]:
    """What somebody else changed of a vCPU: ``quota``, ``affinity``.

    ``ips_limit``: what the Ips controller last set. An affinity outside what Nova allows by now is
    Nova's own doing.
    """
    found = []
    quota = expected.quota
    if quota is not None:
        limit = ips_limit if expected.governed_by == "ips" else quota.bandwidth
        unknown = expected.governed_by == "ips" and ips_limit is None
        if not unknown and reading.bandwidth != limit:
            found.append("quota")
    kept = expected.pcpus
    if kept is not None and kept != reading.pcpus and kept <= reading.allowed:
        # Where only the flavor asks for a core type, any of its pCPUs will do.
        anywhere = expected.governed_by == "flavor" and reading.pcpus <= expected.allowed
        if not (anywhere and reading.pcpus):
            found.append("affinity")
    return tuple(found)


def compare(
    before: ForeignChanges,
    seen: Observation,
    ips_limits: Mapping[VcpuKey, Bandwidth],
    repairs_max: int,
) -> ForeignChanges:
    """Compare what is in force with what shall be, except for instances that restarted."""
    counts, moved, backoffs = Counter(before.counts), {}, dict(before.backoffs)
    instances = {}
    for domain in seen.domains:
        resource = domain.domain.resource
        same_life = before.incarnations.get(resource) == domain.domain.incarnation
        if not same_life or resource in seen.paused:
            continue
        found = _of_domain(before, domain, ips_limits)
        for key, what in found:
            counts[what] += 1
            if what == "affinity" and (kept := before.expected[key].pcpus) is not None:
                moved[key] = kept
        if found:
            instances[resource] = domain.domain.name
            backoff = backoffs.get(resource, Backoff())
            backoffs[resource] = backoff.repaired(seen.time_ns / 1e9, repairs_max)
    return replace(before, moved=moved, instances=instances, counts=counts, backoffs=backoffs)


def _of_domain(
    before: ForeignChanges, domain: DomainReading, ips_limits: Mapping[VcpuKey, Bandwidth]
) -> list[tuple[VcpuKey, str]]:
    found = []
    for reading in domain.vcpus:
        key = (domain.domain.resource, reading.index)
        expected = before.expected.get(key)
        if expected is not None:
            what = differences(expected, reading, ips_limits.get(key))
            found += [(key, each) for each in what]
    return found


def expect(
    before: ForeignChanges,
    seen: Observation,
    entitlements: Mapping[VcpuKey, Entitlement],
    not_made: Iterable[VcpuKey],
) -> ForeignChanges:
    """Remember what shall be in force from now on, except where that could not be made so.

    The limits of best effort that competes with bookings change with its place: they are left out.
    """
    undone = set(not_made)
    expected = {
        key: e
        for key, e in entitlements.items()
        if key not in undone and not (e.quota is not None and e.quota.by_core_type)
    }
    alive = {d.domain.resource: d.domain.incarnation for d in seen.domains}
    backoffs = {r: b for r, b in before.backoffs.items() if r in alive}
    return replace(before, expected=expected, incarnations=alive, backoffs=backoffs)
