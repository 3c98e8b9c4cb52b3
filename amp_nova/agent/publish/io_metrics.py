"""The metrics of I/O work, built afresh from the last interval's report."""

from collections.abc import Collection, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from amp_nova.agent.io_work import IoDomain, IoReport

INSTANCE = ("domain", "resource", "project")
GAUGES = (
    (
        "amp_instance_combined_usage_ratio",
        "CPU utilization of the instance's I/O threads plus network utilization (kumar2009).",
    ),
    ("amp_instance_io_cpu_cores", "CPU time of the instance's I/O threads over wall time."),
    (
        "amp_instance_network_usage_ratio",
        "Share of its bandwidth that the busiest direction of the busiest interface uses.",
    ),
    ("amp_instance_io_insensitive", "Whether its I/O work is taken for insensitive to core speed."),
    ("amp_instance_io_slow", "Whether its I/O threads are kept off fast cores."),
    (
        "amp_instance_io_kept_estimate_ratio",
        "Estimate of the throughput that slow cores leave it at the least.",
    ),
    (
        "amp_instance_io_effect_ratio",
        "Throughput just after its I/O threads went to slow cores, over just before.",
    ),
)


def _values(domain: IoDomain) -> tuple[float | None, ...]:
    used = domain.use
    return (
        used.combined_ratio if used else None,
        used.cpu_cores if used else None,
        used.network_ratio if used else None,
        float(domain.case.insensitive),
        float(domain.slow),
        domain.least_kept_ratio,
        domain.case.effect_ratio,
    )


def io_metrics(report: IoReport, here: Collection[str]) -> Iterator[Metric]:
    """Every metric of I/O work; what is not known has no sample.

    ``here``: UUIDs of the instances there are now. I/O work is looked at less often than they come
    and go, and a series ends when its instance does.
    """
    families = [GaugeMetricFamily(name, text, labels=INSTANCE) for name, text in GAUGES]
    freed = CounterMetricFamily(
        "amp_instance_io_freed_seconds",
        "Estimate of the fast-core time that I/O threads on slow cores set free.",
        labels=INSTANCE,
    )
    for domain in report.domains:
        if domain.reading.failure or domain.reading.resource not in here:
            continue
        labels = (domain.reading.name, domain.reading.resource, domain.reading.project)
        for family, value in zip(families, _values(domain), strict=True):
            if value is not None:
                family.add_metric(labels, value)
        freed.add_metric(labels, domain.freed_s)
    yield from families
    yield freed
    moves = CounterMetricFamily(
        "amp_io_moves", "Moves of instances' I/O threads, by where to.", labels=["to"]
    )
    for where in ("slow", "fast", "home"):
        moves.add_metric([where], report.moves.get(where, 0))
    yield moves
    failed = CounterMetricFamily(
        "amp_io_move_failures", "Moves of I/O threads that failed.", labels=["reason"]
    )
    for reason in sorted({"read_only", "refused", *report.failures}):
        failed.add_metric([reason], report.failures.get(reason, 0))
    yield failed
    yield CounterMetricFamily(
        "amp_io_drift", "Affinities of I/O threads that somebody else changed.", value=report.drift
    )
