# SPDX-License-Identifier: Apache-2.0
"""A cycle as ``status``, ``explain`` and the log show it: as plain data and as sentences."""

from typing import Any

from amp_nova.accounting.delivery import CAUSES
from amp_nova.agent.cycle import Cycle, DomainRecord, VcpuRecord
from amp_nova.flavor.extra_specs import near_misses
from amp_nova.model.bandwidth import described

SOURCES = {
    "sampling": "it ran on both",
    "misses": "estimated from its cache misses",
    "ipc": "a rough estimate from its instructions alone",
}


def status(cycle: Cycle) -> list[dict[str, Any]]:
    """Every instance: booked, delivered, quota, core type, shortfall by cause."""
    return [_instance(d) for d in sorted(cycle.domains, key=lambda d: d.domain.name)]


def _instance(record: DomainRecord) -> dict[str, Any]:
    domain = record.domain
    return {
        "instance": domain.resource,
        "domain": domain.name,
        "name": domain.display_name,
        "project": domain.project,
        "problem": record.problem,
        "vcpus": [_vcpu(v) for v in record.vcpus],
    }


def _vcpu(vcpu: VcpuRecord) -> dict[str, Any]:
    booked, account, limit = vcpu.entitlement.booking, vcpu.account, vcpu.reading.bandwidth
    gain = vcpu.profile.speedup
    return {
        "index": vcpu.reading.index,
        "kind": booked.kind,
        "booked_refcores": booked.refcores,
        "booked_ips": booked.ips,
        "delivered_refcores": account.last.refcores,
        "delivered_ips": account.last.ips,
        "delivered_ratio": account.last.ratio,
        "quota_cores": limit.cores if limit else None,
        "core_type": vcpu.entitlement.core_type,
        "pcpus": sorted(vcpu.reading.pcpus),
        "shortfall_refcore_s": dict(zip(CAUSES, account.shortfall_ref_s, strict=True)),
        # On the fastest core type over the slowest.
        "speedup": {"ratio": gain.value, "error": gain.se, "source": gain.source} if gain else None,
        "note": vcpu.failure or vcpu.entitlement.note,
    }


def explain(cycle: Cycle, resource: str) -> dict[str, Any]:
    """Why the instance with this UUID has its quota and cores."""
    (domain,) = (d for d in cycle.domains if d.domain.resource == resource)
    lines = [line for v in domain.vcpus for line in _because(cycle, v)]
    lines += _coefficient(cycle, domain)
    lines += _parallel(cycle, domain)
    lines[:0] = [f"{sentence}." for sentence in near_misses(domain.domain.specs)]
    if domain.problem:
        lines.insert(0, f"Its booking is not enforced: {domain.problem}.")
    if domain.domain.booking_unknown:
        lines.insert(
            0,
            f"This release of Nova does not tell what its flavor {domain.domain.flavor} books, and "
            "no line of [agent] booking does.",
        )
    if (weight := domain.vcpus[0].entitlement.cpu_weight if domain.vcpus else None) is not None:
        lines.append(f"Its CPU weight is {weight}.")
    if cycle.outcome.observing:
        lines.insert(0, "Bookings are only observed: [agent] mode = observe.")
    return {**_instance(domain), "because": lines}


def _coefficient(cycle: Cycle, domain: DomainRecord) -> list[str]:
    """What the flavor says about coefficients (``amp:coefficient``), as a sentence if anything."""
    booking = cycle.instances[domain.domain.resource].booking
    booked = [v for v in domain.vcpus if v.entitlement.booking.refcores is not None]
    if booking.adaptive is None or not booked:
        return []
    if not booking.adaptive:
        return ["Its flavor asks for exact CPU time (amp:coefficient=fixed)."]
    line = "Its flavor asks for the same speed on every core type (amp:coefficient=adaptive)"
    waits = all(v.entitlement.home.coefficient is None for v in booked)
    return [f"{line}; the speedup of its own work is not known yet." if waits else f"{line}."]


def _parallel(cycle: Cycle, domain: DomainRecord) -> list[str]:
    """What ``amp:parallel`` of the flavor means on this host, as a sentence if anything."""
    booking = cycle.instances[domain.domain.resource].booking
    if not booking.parallel or booking.booked:
        return []
    placed = frozenset[int]().union(*(v.entitlement.allowed for v in domain.vcpus))
    allowed = frozenset[int]().union(*(v.reading.allowed for v in domain.vcpus))
    of_type = {t.name: cycle.topology.pcpus_of(t.name) for t in cycle.topology.core_types}
    left = [name for name, pcpus in of_type.items() if pcpus & placed]
    line = "Its flavor says that its vCPUs run one parallel program (amp:parallel=true)"
    if left == [name for name, pcpus in of_type.items() if pcpus & allowed]:
        return [f"{line}."]
    return [f"{line}: policies keep them on core types with a pCPU for each: {', '.join(left)}."]


def _because(cycle: Cycle, vcpu: VcpuRecord) -> list[str]:
    booked, who = vcpu.entitlement.booking, f"vCPU {vcpu.reading.index}"
    if booked.refcores is not None:
        unit = "reference core" if booked.refcores == 1.0 else "reference cores"
        lines = [f"{who} books {booked.refcores:g} {unit}."]
    elif booked.ips is not None:
        lines = [f"{who} books {booked.ips:g} instructions per second."]
    else:
        lines = [f"{who} is best effort: it books nothing."]
    entitlement = vcpu.entitlement
    if entitlement.core_type and (entitlement.pcpus or entitlement.governed_by == "flavor"):
        core_type = cycle.topology.core_type(entitlement.core_type)
        source = core_type.coefficient_source or cycle.topology.source
        speed = "unknown" if core_type.coefficient is None else f"{core_type.coefficient:g}"
        pcpus = ", ".join(str(p) for p in sorted(entitlement.pcpus or entitlement.allowed))
        lines.append(
            f"It is kept on core type {core_type.name} (pCPUs {pcpus}), "
            f"coefficient {speed} ({source})."
        )
    lines += [_limit(vcpu), *_would(cycle, vcpu)]
    if entitlement.banked_s > 0.0:
        banked = f"{entitlement.banked_s:.2f} s of its booking"
        lines.append(f"It has banked {banked} that it did not use, and may use them now.")
    if (gain := vcpu.profile.speedup) is not None:
        lines.append(
            f"Its own work is {gain.value:.2f} +- {gain.se:.2f} times as fast on the fastest core "
            f"type as on the slowest ({SOURCES.get(gain.source, gain.source)})."
        )
    if vcpu.account.last.ratio is not None:
        lines.append(
            f"In the last window it got {vcpu.account.last.ratio:.1%} of what it was owed; it was "
            f"at most {vcpu.account.last.behind_s * 1e3:.0f} ms behind in this minute."
        )
    short = {c: s for c, s in zip(CAUSES, vcpu.account.shortfall_ref_s, strict=True) if s > 0}
    if short:
        parts = ", ".join(f"{s:.3f} by {c.replace('_', ' ')}" for c, s in short.items())
        lines.append(f"Not delivered so far, in reference-core seconds: {parts}.")
    if note := vcpu.failure or vcpu.entitlement.note:
        lines.append(f"{note[0].upper()}{note[1:]}.")
    return lines


def _would(cycle: Cycle, vcpu: VcpuRecord) -> list[str]:
    """What enforcement would do, as a sentence if bookings are only observed."""
    limit, so_far = vcpu.entitlement.limit, vcpu.account.delivery
    if not cycle.outcome.observing or limit is None:
        return []
    share = f"{limit.cores:.2%} of a pCPU ({vcpu.entitlement.reason})"
    throttled = f"{so_far.throttled_least_s:.1f} to {so_far.throttled_most_s:.1f} s"
    beyond = f"{so_far.beyond_ref_s:.1f} reference-core seconds beyond its booking"
    line = f"Enforcement would limit it to {share}: so far it would have been throttled for"
    return [f"{line} {throttled}, and it has used {beyond}."]


def _limit(vcpu: VcpuRecord) -> str:
    limit, entitlement = vcpu.reading.bandwidth, vcpu.entitlement
    if limit is None:
        return "It has no CPU quota."
    if entitlement.governed_by == "ips":
        return f"Its quota is {limit.cores:.2%} of a pCPU at the moment: {entitlement.reason}."
    text = f"Its quota is {limit.quota_us} us in every {limit.period_us} us ({limit.cores:.2%})"
    if entitlement.share is None:
        return f"{text}."
    late = f"it may be {limit.delay_s * 1e3:.0f} ms behind a core of that speed"
    return f"{text}: {entitlement.reason}; {late}."


def describe(cycle: Cycle) -> list[str]:
    """The changes of a cycle, one line each: which vCPU or instance, what, and why."""
    names = {d.domain.resource: d.domain.name for d in cycle.observation.domains}
    lines = []
    for change in cycle.changes.vcpus:
        failure = cycle.outcome.failures.get(change.key)
        lines.append(
            f"{names[change.key[0]]} vCPU {change.key[1]}: "
            f"{', '.join(map(described, change.steps))} ({change.reason})"
            + (f" FAILED: {failure.message}" if failure else "")
        )
    for uuid, weight in cycle.changes.cpu_weights.items():
        failure = cycle.outcome.weight_failures.get(uuid)
        lines.append(
            f"{names[uuid]}: CPU weight {weight}"
            + (f" FAILED: {failure.message}" if failure else "")
        )
    return lines
