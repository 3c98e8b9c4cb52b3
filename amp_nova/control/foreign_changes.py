# SPDX-License-Identifier: Apache-2.0
"""Limits and affinities that somebody else changed: detected, counted, repaired a few times.

A quota has one writer, and amp-nova does not fight another one: after a few repairs within a minute
the instance is excluded for a while, and the log says so. Its own QEMU can change where it runs,
but not its limits: if nothing else was changed, its limits still fall (``context.MOVED``).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import Struct, structs

from amp_nova.control.context import MOVED
from amp_nova.control.entitlement import Entitlement, Entitlements
from amp_nova.model import cpu_weight
from amp_nova.model.allocation import Allocation, Allocations
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Domain, Observation, VcpuKey
from amp_nova.model.topology import Topology

REPAIRS_MAX, REPAIRS_WITHIN_S = 3, 60.0
"""One administrator's command or two are undone; what goes on after that is another program."""
EXCLUDED_S = 300.0
CAUSES = ("quota", "affinity", "weight", "burst")
EXCLUDED = "somebody else keeps changing its limits: run 'amp-nova pause' before changing them"


@dataclass(frozen=True, slots=True)
class Backoff:
    """When foreign changes of one instance were repaired lately, and until when it is excluded."""

    repairs_s: tuple[float, ...] = ()
    excluded_until_s: float = 0.0

    def repaired(self, now_s: float) -> "Backoff":
        """The back-off after one more repair.

        More than ``REPAIRS_MAX`` within a minute exclude the instance for ``EXCLUDED_S``.
        """
        recent = tuple(t for t in self.repairs_s if now_s - t < REPAIRS_WITHIN_S)
        if len(recent) >= REPAIRS_MAX:
            return Backoff((), now_s + EXCLUDED_S)
        return Backoff((*recent, now_s))


class ForeignChanges(Struct, frozen=True):
    """What the last cycle left in force, and how the present observation differs from it.

    From the last cycle: ``expected`` and ``in_force``, and the ``cpu_weights`` it wanted. From the
    last comparison: ``incarnations``; ``moved``, the expected affinity of each vCPU that somebody
    moved; ``instances`` that somebody changed (libvirt names by UUID); ``excluded`` instances with
    the reason, by which ``backoffs`` are kept apart; ``topology``. ``counts``: foreign changes
    since the agent started, by cause (``CAUSES``).
    """

    expected: Entitlements = MappingProxyType({})
    in_force: Allocations = MappingProxyType({})
    incarnations: Mapping[str, str] = MappingProxyType({})
    moved: Mapping[VcpuKey, frozenset[int]] = MappingProxyType({})
    instances: Mapping[str, str] = MappingProxyType({})
    counts: Mapping[str, int] = MappingProxyType({})
    backoffs: Mapping[tuple[str, str], Backoff] = MappingProxyType({})
    excluded: Mapping[str, str] = MappingProxyType({})
    cpu_weights: Mapping[str, int] = MappingProxyType({})
    topology: Topology | None = None

    def adopting(self) -> "ForeignChanges":
        """Forget what was expected: the next observation has no foreign changes."""
        return structs.replace(self, expected={}, in_force={}, incarnations={}, cpu_weights={})


def differences(expected: Entitlement, now: Allocation, limit: Bandwidth | None) -> tuple[str, ...]:
    """What somebody else changed of a vCPU: ``quota``, ``affinity``, ``burst``.

    ``limit``: what was last set. An expected affinity that is no longer allowed
    was changed by Nova, which is not foreign. Best effort that competes with bookings is not
    compared, because its limit depends on the core type it is on.
    """
    causes = []
    if expected.share is not None and expected.share.by_core_type:
        return ()
    if expected.share is not None:
        if now.bandwidth != limit:
            causes.append("quota")
        if now.burst_us and expected.limit is not None:
            causes.append("burst")
    affinity = expected.pcpus
    if affinity is not None and affinity != now.pcpus and affinity <= now.allowed:
        # A vCPU with nothing but a core type in its flavor may be on any pCPUs of that type.
        anywhere = expected.governed_by == "flavor" and now.pcpus <= expected.allowed
        if not (anywhere and now.pcpus):
            causes.append("affinity")
    return tuple(causes)


def by_hotplug(
    expected: frozenset[int], now: frozenset[int], before: Topology | None, after: Topology
) -> bool:
    """Whether the kernel changed an affinity because pCPUs went online or offline.

    It reports only the online pCPUs of an affinity, and lets a thread run elsewhere if all pCPUs of
    its affinity are offline.
    """
    if before is None:
        return False
    was, online = (frozenset(p.id for p in topology.pcpus) for topology in (before, after))
    # A pCPU may have come online since the topology was read.
    added, removed = (online - was) | (now - online), was - online
    return expected ^ now <= added | removed or expected <= removed


def compare(
    before: ForeignChanges,
    observation: Observation,
    now: Allocations,
    between: Mapping[VcpuKey, Bandwidth | None],
) -> ForeignChanges:
    """Compare what is in force with what was expected, except of paused or restarted instances.

    ``between``: the limits written since the last cycle.
    """
    now_s, was = observation.time_ns / 1e9, before.in_force
    domains = {d.domain.resource: d.domain for d in observation.domains}
    incarnations = {resource: domain.incarnation for resource, domain in domains.items()}
    counts, moved, instances = Counter(before.counts), {}, {}
    changed: dict[tuple[str, str], None] = {}
    for key, expected in before.expected.items() if now is not was and now != was else ():
        resource = key[0]
        same = before.incarnations.get(resource) == incarnations.get(resource)
        if key not in now or now[key] == was.get(key) or resource in observation.paused or not same:
            continue
        causes = differences(expected, now[key], between.get(key, expected.limit))
        affinity, pcpus = expected.pcpus, now[key].pcpus
        hotplug = affinity and by_hotplug(affinity, pcpus, before.topology, observation.topology)
        if "affinity" in causes and hotplug:
            causes = tuple(cause for cause in causes if cause != "affinity")
        counts.update(causes)
        if causes:
            instances[resource] = domains[resource].name
            changed[resource, MOVED if causes == ("affinity",) else EXCLUDED] = None
        if "affinity" in causes and expected.pcpus is not None:
            moved[key] = expected.pcpus
    for domain in _with_another_weight(before, observation, incarnations):
        counts["weight"] += 1
        instances[domain.resource] = domain.name
        changed[domain.resource, MOVED] = None
    backoffs = {key: b for key, b in before.backoffs.items() if key[0] in incarnations}
    for each in changed:
        backoffs[each] = backoffs.get(each, Backoff()).repaired(now_s)
    now_excluded = {key for key, b in backoffs.items() if now_s < b.excluded_until_s}
    excluded = {r: EXCLUDED if (r, EXCLUDED) in now_excluded else why for r, why in now_excluded}
    return ForeignChanges(
        *(before.expected, was, incarnations, moved, instances, counts, backoffs, excluded),
        topology=observation.topology,
    )


def _with_another_weight(
    before: ForeignChanges, observation: Observation, incarnations: Mapping[str, str]
) -> Iterator[Domain]:
    """The domains whose CPU weight somebody changed.

    systemd writes the default with every daemon-reload: that is repaired, but not counted.
    """
    for domain in observation.domains if before.cpu_weights else ():
        resource, weight = domain.domain.resource, domain.cpu_weight
        same = before.incarnations.get(resource) == incarnations[resource]
        nobodys = (None, cpu_weight.DEFAULT, before.cpu_weights.get(resource, weight))
        if same and resource not in observation.paused and weight not in nobodys:
            yield domain.domain


def expect(
    before: ForeignChanges,
    entitlements: Entitlements,
    now: Allocations,
    not_made: Collection[VcpuKey | str],
) -> ForeignChanges:
    """Remember what shall be in force from now on, except for changes that failed.

    ``now``: what is in force after the writes of the cycle; ``not_made``: the vCPUs that could not
    be changed, and the instances whose CPU weight could not.
    """
    weights = {k[0]: e.cpu_weight for k, e in entitlements.items() if e.cpu_weight is not None}
    if not_made:
        entitlements = {key: e for key, e in entitlements.items() if key not in not_made}
        weights = {resource: w for resource, w in weights.items() if resource not in not_made}
    return structs.replace(before, expected=entitlements, in_force=now, cpu_weights=weights)
