"""The agent's Prometheus metrics, built afresh from the last cycle's report at every scrape.

Nothing lingers: a series ends when its instance does, and what is not known has no sample.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from amp_nova.accounting.delivery import CAUSES, RATIO_BUCKETS
from amp_nova.accounting.speed_loss import measured
from amp_nova.agent.cycle import CycleReport, DomainReport, VcpuReport
from amp_nova.agent.io_work import IoReport
from amp_nova.agent.publish import profile_metrics
from amp_nova.agent.publish.io_metrics import io_metrics
from amp_nova.exceptions import ConfigInvalid
from amp_nova.model.topology import Topology

INSTANCE = ("domain", "resource", "project")
VCPU = (*INSTANCE, "vcpu")


class Exporter:
    """Serves what the last cycle reported."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.time,
        calibrated_s: float | None = None,
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self.lateness_s: float | None = None
        self.hypervisor_up: bool | None = None
        self.libvirt_calls: int | None = None
        self.counters: Mapping[tuple[str, str], int] = {}
        """How many vCPUs each source counts, with what there is to say about it."""
        self.io: IoReport | None = None
        self.calibrated_s = calibrated_s
        """When the calibration in use was made, in seconds since the epoch."""
        self._clock = clock
        self._report: Callable[[], CycleReport] | None = None
        self._success_s: float | None = None
        self._stages: dict[str, tuple[int, float]] = {}
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def update(self, report: CycleReport) -> None:
        """Serve this report from now on."""
        self.follow(report.stage_s, lambda: report)

    def follow(self, stage_s: Mapping[str, float], report: Callable[[], CycleReport]) -> None:
        """Note a cycle that ended well; ``report`` tells at a scrape what is to be served."""
        stages = dict(self._stages)  # a scrape may be going through the old ones
        for stage, took_s in stage_s.items():
            count, total = stages.get(stage, (0, 0.0))
            stages[stage] = (count + 1, total + took_s)
        self._stages = stages
        self._success_s = self._clock()
        self._report = report

    def start_http(self, address: str, port: int) -> tuple[str, int]:
        """Serve on an address; port 0 takes any free one. What it got."""
        try:
            server, _ = start_http_server(port, addr=address, registry=self.registry)
        except OSError as exc:
            raise ConfigInvalid(
                f"metrics cannot be served on {address}:{port} ({exc.strerror}): set another "
                "[exporter] address or port"
            ) from exc
        return address, int(server.server_port)

    def collect(self) -> Iterator[Metric]:
        """Every metric there is something to say about (prometheus_client's Collector)."""
        yield InfoMetricFamily("amp_build", "What runs.", value={"version": version("amp-nova")})
        yield from self._own()
        if self._report is None:
            return
        report = self._report()
        yield from _host(report)
        yield from _instances(report.domains)
        vcpus = [
            ((d.domain.name, d.domain.resource, d.domain.project, str(v.reading.index)), v)
            for d in report.domains
            for v in d.vcpus
        ]
        yield from _promised(vcpus)
        yield from _delivered(vcpus, report.topology)
        yield from profile_metrics.families(report, vcpus, VCPU)
        yield from _counted(vcpus)
        if self.io is not None:
            yield from io_metrics(self.io, {d.domain.resource for d in report.domains})

    def _own(self) -> Iterator[Metric]:
        gauges: tuple[tuple[str, str, float | None], ...] = (
            (
                "amp_cycle_last_success_timestamp_seconds",
                "When the last control cycle ended well.",
                self._success_s,
            ),
            (
                "amp_cycle_lateness_seconds",
                "How much later than due the last periodic cycle began.",
                self.lateness_s,
            ),
            (
                "amp_hypervisor_up",
                "Whether the hypervisor answers.",
                None if self.hypervisor_up is None else float(self.hypervisor_up),
            ),
            (
                "amp_calibration_age_seconds",
                "Age of the calibration in use.",
                None if self.calibrated_s is None else self._clock() - self.calibrated_s,
            ),
        )
        for name, help_text, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(name, help_text, value=value)
        if self.libvirt_calls is not None:
            yield CounterMetricFamily(
                "amp_libvirt_calls", "Calls made to libvirt.", value=self.libvirt_calls
            )
        if self.counters:
            yield _sources(self.counters)
        took = SummaryMetricFamily(
            "amp_cycle_duration_seconds", "Time control cycles took.", labels=["stage"]
        )
        for stage, (count, total) in self._stages.items():
            took.add_metric([stage], count, total)
        yield took


def _sources(counters: Mapping[tuple[str, str], int]) -> Metric:
    """What counts instructions here; several when not all vCPUs are counted alike."""
    family = GaugeMetricFamily(
        "amp_counters_info", "What counts vCPUs' instructions.", labels=["source", "about"]
    )
    for labels in counters:
        family.add_metric(list(labels), 1)
    return family


def _host(report: CycleReport) -> Iterator[Metric]:
    yield from _core_types(report.topology)
    totals = report.totals
    moves = CounterMetricFamily(
        "amp_migrations", "Moves of vCPUs between core types.", labels=["from", "to"]
    )
    for pair, count in totals.migrations.items():
        moves.add_metric(list(pair), count)
    yield moves
    drift = {"quota": 0, "affinity": 0, **totals.drift}
    yield _counts("amp_enforcement_drift", "Limits that somebody else changed.", "cause", drift)
    failed = {"read_only": 0, "refused": 0, **totals.failures}
    yield _counts("amp_actuation_failures", "Changes that failed.", "reason", failed)
    yield CounterMetricFamily(
        "amp_plans_rejected", "Unusable plans of policies.", value=totals.plans_rejected
    )
    yield CounterMetricFamily("amp_writes", "Limits written.", value=totals.writes)


def _core_types(topology: Topology) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "amp_topology", "Where the core types come from.", value={"source": topology.source}
    )
    yield GaugeMetricFamily(
        "amp_topology_warnings",
        "Doubts about core types or calibration, which 'amp-nova topology' and the log spell out.",
        value=len(topology.warnings),
    )
    coefficient = GaugeMetricFamily(
        "amp_core_type_coefficient_ratio",
        "Speed of a core type over the reference core.",
        labels=["core_type", "source"],
    )
    pcpus = GaugeMetricFamily("amp_core_type_pcpus", "Online pCPUs.", labels=["core_type"])
    for core_type in topology.core_types:
        pcpus.add_metric([core_type.name], len(topology.pcpus_of(core_type.name)))
        if core_type.coefficient is not None:
            source = core_type.coefficient_source or topology.source
            coefficient.add_metric([core_type.name, source], core_type.coefficient)
    yield coefficient
    yield pcpus


def _counts(name: str, help_text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _instances(domains: Sequence[DomainReport]) -> Iterator[Metric]:
    info = InfoMetricFamily("amp_instance", "What an instance is called.", labels=INSTANCE)
    ratio = HistogramMetricFamily(
        "amp_instance_delivered_ratio",
        "Delivered over booked capacity while there was demand, over windows of 3 s.",
        labels=INSTANCE,
    )
    problem = GaugeMetricFamily(
        "amp_instance_problem_info", "Why a booking is not kept.", labels=[*INSTANCE, "problem"]
    )
    for report in domains:
        domain = report.domain
        labels = (domain.name, domain.resource, domain.project)
        info.add_metric(labels, {"name": domain.display_name, "flavor": domain.flavor})
        if report.problem:
            problem.add_metric([*labels, report.problem], 1)
        if any(report.ratios):
            ratio.add_metric(labels, list(_cumulative(report.ratios)), report.ratio_sum)
    yield info
    yield ratio
    yield problem


def _cumulative(counts: Iterable[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*RATIO_BUCKETS, float("inf")), counts, strict=True):
        total += count
        yield ("+Inf" if bound == float("inf") else str(bound)), total


Labelled = Sequence[tuple[tuple[str, ...], VcpuReport]]


def _promised(vcpus: Labelled) -> Iterator[Metric]:
    refcores = GaugeMetricFamily(
        "amp_vcpu_booked_refcores", "Booked capacity, in reference cores.", labels=VCPU
    )
    ips = GaugeMetricFamily(
        "amp_vcpu_booked_ips", "Booked capacity, in instructions per second.", labels=VCPU
    )
    quota = GaugeMetricFamily(
        "amp_vcpu_quota_cores", "Limit in force, as a wall share of one pCPU.", labels=VCPU
    )
    unkept = GaugeMetricFamily(
        "amp_vcpu_unenforced_info", "Bookings not enforced as they are.", labels=[*VCPU, "why"]
    )
    for labels, vcpu in vcpus:
        booked = vcpu.promise.booking
        if booked.refcores is not None:
            refcores.add_metric(labels, booked.refcores)
        if booked.ips is not None:
            ips.add_metric(labels, booked.ips)
        if vcpu.reading.bandwidth is not None:
            quota.add_metric(labels, vcpu.reading.bandwidth.cores)
        if booked.kind != "best_effort" and (vcpu.promise.note or vcpu.failure):
            unkept.add_metric([*labels, vcpu.failure or vcpu.promise.note or ""], 1)
    yield from (refcores, ips, quota, unkept)


def told_apart(topology: Topology, vcpu: VcpuReport) -> Mapping[str, bool]:
    """Causes of shortfall that not every host can tell: whether this one can, of this vCPU."""
    core_type = vcpu.promise.core_type
    known = next((t for t in topology.core_types if t.name == core_type), None)
    return measured(known, vcpu.reading)


def _delivered(vcpus: Labelled, topology: Topology) -> Iterator[Metric]:
    delivered = GaugeMetricFamily(
        "amp_vcpu_delivered_refcores",
        "Delivered capacity over the last window, in reference cores.",
        labels=VCPU,
    )
    ratio = GaugeMetricFamily(
        "amp_vcpu_delivered_ratio",
        "Delivered over booked capacity while there was demand, over the last window.",
        labels=VCPU,
    )
    shortfall = CounterMetricFamily(
        "amp_vcpu_shortfall_refcore_seconds",
        "Booked capacity that was wanted and not delivered.",
        labels=[*VCPU, "cause"],
    )
    cpu = CounterMetricFamily(
        "amp_vcpu_cpu_seconds", "CPU time by core type.", labels=[*VCPU, "core_type"]
    )
    reference = CounterMetricFamily(
        "amp_vcpu_reference_cpu_seconds", "CPU time times coefficient.", labels=VCPU
    )
    names = [t.name for t in topology.core_types]
    for labels, vcpu in vcpus:
        account = vcpu.account
        if account.delivered_refcores is not None:
            delivered.add_metric(labels, account.delivered_refcores)
        booked = vcpu.promise.booking
        if booked.refcores is not None or (booked.ips and vcpu.reading.counts is not None):
            if account.ratio is not None:
                ratio.add_metric(labels, account.ratio)
            told = told_apart(topology, vcpu)
            for cause, short_ref_s in zip(CAUSES, account.shortfall_ref_s, strict=True):
                if short_ref_s or told.get(cause, True):
                    shortfall.add_metric([*labels, cause], short_ref_s)
        if len(account.cpu_s) == len(names):
            for name, used_s in zip(names, account.cpu_s, strict=True):
                cpu.add_metric([*labels, name], used_s)
            reference.add_metric(labels, account.ref_s)
    yield from (delivered, ratio, shortfall, cpu, reference)


def _counted(vcpus: Labelled) -> Iterator[Metric]:
    instructions = CounterMetricFamily(
        "amp_vcpu_instructions", "Instructions retired, as counted here.", labels=VCPU
    )
    delivered = GaugeMetricFamily(
        "amp_vcpu_delivered_ips", "Instructions per second over the last window.", labels=VCPU
    )
    for labels, vcpu in vcpus:
        if vcpu.reading.counts is not None:
            instructions.add_metric(labels, vcpu.reading.counts.instructions)
        if vcpu.account.delivered_ips is not None:
            delivered.add_metric(labels, vcpu.account.delivered_ips)
    yield from (instructions, delivered)
