"""Metrics of what is estimated: efficiency, speed-up, own coefficients, and their drift."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from amp_nova.accounting import slowdown as slowdown_
from amp_nova.accounting.slowdown import Shared
from amp_nova.agent.cycle import CycleReport, DomainReport, VcpuReport
from amp_nova.model.topology import Topology


def families(
    report: CycleReport,
    vcpus: Sequence[tuple[tuple[str, ...], VcpuReport]],
    labels: Sequence[str],
) -> Iterator[Metric]:
    """Every one of which something is known."""
    yield from _estimates(vcpus, labels)
    own = GaugeMetricFamily(
        "amp_vcpu_coefficient_ratio",
        "Own coefficient that a booking is converted with, where it is not the core type's.",
        labels=[*labels, "core_type"],
    )
    for values, vcpu in vcpus:
        promise = vcpu.promise
        if promise.coefficient is not None and promise.core_type is not None:
            own.add_metric([*values, promise.core_type], promise.coefficient)
    yield own
    drift = GaugeMetricFamily(
        "amp_coefficient_drift_ratio",
        "Speed-up that guests show on a core type over what its coefficient says.",
        labels=["core_type"],
    )
    for core_type, ratio in report.coefficient_drift.items():
        drift.add_metric([core_type], ratio)
    yield drift
    yield from _fairness(report)


def _fairness(report: CycleReport) -> Iterator[Metric]:
    slowdown = GaugeMetricFamily(
        "amp_instance_slowdown_ratio",
        "Speed of best effort alone on the fastest core type, over the speed it got lately.",
        labels=["domain", "resource", "project"],
    )
    found = []
    for domain in report.domains:
        about = domain.domain
        if (ratio := _slowdown(domain, report.topology)) is not None:
            slowdown.add_metric([about.name, about.resource, about.project], ratio)
            found.append(ratio)
    unfairness = GaugeMetricFamily(
        "amp_host_unfairness_ratio", "Greatest over least slowdown of best-effort instances."
    )
    if (most := slowdown_.unfairness(found)) is not None:
        unfairness.add_metric([], most)
    yield from (slowdown, unfairness)


def _slowdown(domain: DomainReport, topology: Topology) -> float | None:
    """Of an instance that books nothing: what a booking holds back is no loss."""
    if any(v.promise.booking.kind != "best_effort" for v in domain.vcpus):
        return None
    shared = []
    for vcpu in domain.vcpus:
        known = vcpu.insight.sampled or vcpu.insight.speedup
        shared.append(Shared(None if known is None else known.value, vcpu.account.recent))
    return slowdown_.slowdown(shared, topology.core_types)


def _estimates(
    vcpus: Sequence[tuple[tuple[str, ...], VcpuReport]], labels: Sequence[str]
) -> Iterator[Metric]:
    efficiency = GaugeMetricFamily(
        "amp_vcpu_efficiency_ratio",
        "Fast-core efficiency score: instructions per cycle x utilization.",
        labels=labels,
    )
    speedup = GaugeMetricFamily(
        "amp_vcpu_speedup_ratio",
        "Estimated speed on the fastest core type over the slowest.",
        labels=[*labels, "source"],
    )
    error = GaugeMetricFamily(
        "amp_vcpu_speedup_error_ratio",
        "Standard error of that estimate.",
        labels=[*labels, "source"],
    )
    for values, vcpu in vcpus:
        insight = vcpu.insight
        if insight.score is not None:
            efficiency.add_metric(values, insight.score)
        if insight.speedup is not None:
            speedup.add_metric([*values, insight.speedup.source], insight.speedup.value)
            error.add_metric([*values, insight.speedup.source], insight.speedup.se)
    yield from (efficiency, speedup, error)
