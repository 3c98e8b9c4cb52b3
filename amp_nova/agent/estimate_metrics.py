"""Metrics of what is estimated: efficiency, speed-up, own coefficients, and their drift."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from amp_nova.core.report import CycleReport, VcpuReport


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
