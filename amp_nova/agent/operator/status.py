"""What ``status`` and ``explain`` say of the last cycle, as plain data and as sentences."""

from typing import Any

from amp_nova.accounting.delivery import CAUSES
from amp_nova.agent.cycle import CycleReport, DomainReport, VcpuReport

SOURCES = {
    "sampling": "it ran on both",
    "misses": "by its cache misses",
    "ipc": "by its instructions alone, which tells little",
}


def status(report: CycleReport) -> list[dict[str, Any]]:
    """Every instance: booked, delivered, quota, core type, shortfall by cause."""
    return [_instance(d) for d in sorted(report.domains, key=lambda d: d.domain.name)]


def _instance(report: DomainReport) -> dict[str, Any]:
    domain = report.domain
    return {
        "instance": domain.resource,
        "domain": domain.name,
        "name": domain.display_name,
        "project": domain.project,
        "problem": report.problem,
        "vcpus": [_vcpu(v) for v in report.vcpus],
    }


def _vcpu(vcpu: VcpuReport) -> dict[str, Any]:
    booked, account, limit = vcpu.promise.booking, vcpu.account, vcpu.reading.bandwidth
    return {
        "index": vcpu.reading.index,
        "kind": booked.kind,
        "booked_refcores": booked.refcores,
        "booked_ips": booked.ips,
        "delivered_refcores": account.delivered_refcores,
        "delivered_ips": account.delivered_ips,
        "delivered_ratio": account.ratio,
        "quota_cores": limit.cores if limit else None,
        "core_type": vcpu.promise.core_type,
        "pcpus": sorted(vcpu.reading.pcpus),
        "shortfall_refcore_s": dict(zip(CAUSES, account.shortfall_ref_s, strict=True)),
        "note": vcpu.failure or vcpu.promise.note,
    }


def explain(report: CycleReport, resource: str) -> dict[str, Any]:
    """Why the instance of this UUID has the quota and cores it has."""
    (domain,) = (d for d in report.domains if d.domain.resource == resource)
    lines = [line for v in domain.vcpus for line in _because(report, v)]
    if domain.problem:
        lines.insert(0, f"Its booking is not kept: {domain.problem}.")
    if domain.yields:
        lines.append("It yields to all other instances: it runs in what bookings leave.")
    return {**_instance(domain), "because": lines}


def _because(report: CycleReport, vcpu: VcpuReport) -> list[str]:
    booked, who = vcpu.promise.booking, f"vCPU {vcpu.reading.index}"
    if booked.refcores is not None:
        lines = [f"{who} books {booked.refcores:g} reference cores."]
    elif booked.ips is not None:
        lines = [f"{who} books {booked.ips:g} instructions per second."]
    else:
        lines = [f"{who} is best effort: it books nothing."]
    if vcpu.promise.core_type and vcpu.promise.grant:
        core_type = report.topology.core_type(vcpu.promise.core_type)
        source = core_type.coefficient_source or report.topology.source
        speed = "unknown" if core_type.coefficient is None else f"{core_type.coefficient:g}"
        pcpus = ", ".join(str(p) for p in sorted(vcpu.promise.grant.pcpus))
        lines.append(
            f"It is kept on core type {core_type.name} (pCPUs {pcpus}), "
            f"coefficient {speed} ({source})."
        )
    lines.append(_limit(vcpu))
    if vcpu.promise.burst is not None and vcpu.account.banked_ref_s > 0.0:
        banked = f"{vcpu.account.banked_ref_s:.3f} reference-core seconds"
        lines.append(f"It has banked {banked} that it did not want, and may have them now.")
    if (gain := vcpu.insight.speedup) is not None:
        lines.append(
            f"Its own work is {gain.value:.2f} +- {gain.se:.2f} times as fast on the fastest core "
            f"type as on the slowest ({SOURCES.get(gain.source, gain.source)})."
        )
    if vcpu.account.ratio is not None:
        lines.append(
            f"In the last window it was delivered {vcpu.account.ratio:.1%} of what it was owed."
        )
    short = {c: s for c, s in zip(CAUSES, vcpu.account.shortfall_ref_s, strict=True) if s > 0}
    if short:
        parts = ", ".join(f"{s:.3f} by {c.replace('_', ' ')}" for c, s in short.items())
        lines.append(f"It lacked, in reference-core seconds so far: {parts}.")
    if note := vcpu.failure or vcpu.promise.note:
        lines.append(f"{note[0].upper()}{note[1:]}.")
    return lines


def _limit(vcpu: VcpuReport) -> str:
    limit, grant = vcpu.reading.bandwidth, vcpu.promise.grant
    if limit is None:
        return "It has no CPU quota."
    if grant and grant.governed:
        return f"Its quota is {limit.cores:.2%} of a pCPU just now: {grant.why}."
    text = f"Its quota is {limit.quota_us} us in every {limit.period_us} us ({limit.cores:.2%})"
    return f"{text}: {grant.why}." if grant and grant.limits else f"{text}."
