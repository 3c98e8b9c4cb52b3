"""Limits and affinities that somebody else changed: seen, counted, repaired a few times, then left.

One quota has one writer. Somebody who keeps changing what amp-nova set is not fought: after a few
repairs within a minute the instance is excluded for a while, and the log says so.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from amp_nova.control.entitlement import Entitlement, Entitlements
from amp_nova.model.allocation import Allocation, Allocations
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Observation, VcpuKey

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

    ``expected``, ``in_force`` and ``incarnations`` are of the last cycle, ``moved`` (where vCPUs
    were kept before somebody moved them) and ``instances`` (libvirt names by UUID) of the last
    comparison; ``counts``: foreign changes so far, by ``quota`` and ``affinity``.
    """

    expected: Entitlements = field(default_factory=dict)
    in_force: Allocations = field(default_factory=dict)
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
    expected: Entitlement, now: Allocation, ips_limit: Bandwidth | None = None
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
        if not unknown and now.bandwidth != limit:
            found.append("quota")
    kept = expected.pcpus
    if kept is not None and kept != now.pcpus and kept <= now.allowed:
        # Where only the flavor asks for a core type, any of its pCPUs will do.
        anywhere = expected.governed_by == "flavor" and now.pcpus <= expected.allowed
        if not (anywhere and now.pcpus):
            found.append("affinity")
    return tuple(found)


def compare(
    before: ForeignChanges,
    seen: Observation,
    now: Allocations,
    ips_limits: Mapping[VcpuKey, Bandwidth],
    repairs_max: int,
) -> ForeignChanges:
    """Compare what is in force with what shall be, except for instances that restarted."""
    if now == before.in_force:
        return replace(before, moved={}, instances={})
    names = {
        d.domain.resource: d.domain.name
        for d in seen.domains
        if before.incarnations.get(d.domain.resource) == d.domain.incarnation
        and d.domain.resource not in seen.paused
    }
    counts, moved, instances = Counter(before.counts), {}, {}
    for key, expected in before.expected.items():
        resource = key[0]
        if resource not in names or key not in now:
            continue
        found = differences(expected, now[key], ips_limits.get(key))
        counts.update(found)
        if found:
            instances[resource] = names[resource]
        if "affinity" in found and expected.pcpus is not None:
            moved[key] = expected.pcpus
    backoffs = dict(before.backoffs)
    for resource in instances:
        backoff = backoffs.get(resource, Backoff())
        backoffs[resource] = backoff.repaired(seen.time_ns / 1e9, repairs_max)
    return replace(before, moved=moved, instances=instances, counts=counts, backoffs=backoffs)


def expect(
    before: ForeignChanges,
    seen: Observation,
    entitlements: Entitlements,
    now: Allocations,
    not_made: Collection[VcpuKey],
) -> ForeignChanges:
    """Remember what shall be in force from now on, except where that could not be made so.

    The limits of best effort that competes with bookings change with its place: they are left out.
    ``now``: what is in force after the writes of the cycle.
    """
    expected = {
        key: e
        for key, e in entitlements.items()
        if key not in not_made and not (e.quota is not None and e.quota.by_core_type)
    }
    alive = {d.domain.resource: d.domain.incarnation for d in seen.domains}
    backoffs = {r: b for r, b in before.backoffs.items() if r in alive}
    return replace(before, expected=expected, in_force=now, incarnations=alive, backoffs=backoffs)
