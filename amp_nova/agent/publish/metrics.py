# SPDX-License-Identifier: Apache-2.0
"""Every Prometheus metric of the agent, one row each: type, name, help, accessor and labels.

The table has a section per kind of record: the agent itself, the last cycle, the host, instances,
vCPUs, and the I/O work of an instance. ``SUMS`` are those of ``SUMMED``, added up by
instance. A row's accessor reads the record
and returns a number, a mapping from values of the row's own labels to numbers, or ``None`` (no
sample) if the value is unknown. The section adds the labels that name the record.

Families are built at every scrape, so a series ends when its instance does. A new metric is a row
here, a value in the record that it reads, and a term in ``doc/source/reference/metrics.rst``
(``test_metrics``).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from prometheus_client.core import Metric

from amp_nova.accounting import slowdown
from amp_nova.agent.cycle import Cycle, DomainRecord, VcpuRecord
from amp_nova.agent.io_work import IoDomain
from amp_nova.agent.publish import host_info, snapshot
from amp_nova.agent.publish.host_info import AgentStatus, Distribution, HostInfo
from amp_nova.agent.publish.snapshot import Labels, Snapshot, VcpuTotals, of_each
from amp_nova.control.foreign_changes import CAUSES as CHANGED
from amp_nova.flavor import scs

T = TypeVar("T")

Number = float | Distribution
Value = Number | Mapping[Any, Number] | None
"""What an accessor returns; the keys of a mapping are a label value or a tuple of label values."""


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """One metric. ``labels``: beside the section's; ``summed``: the name of its sum by instance."""

    kind: str
    name: str
    help: str
    read: Callable[[T], Value]
    labels: Labels = ()
    summed: str = ""

    def family(self, labels: Labels, records: Iterable[tuple[Labels, T]]) -> Metric:
        """The metric's samples; ``records`` come with the values of the section's ``labels``."""
        suffix = {"counter": "_total", "info": "_info"}.get(self.kind, "")
        family = Metric(self.name.removesuffix(suffix), self.help, self.kind)
        names = (*labels, *self.labels)
        for values, record in records:
            value = self.read(record)
            for own, number in value.items() if isinstance(value, Mapping) else [((), value)]:
                own = (own,) if isinstance(own, str) else own
                if number is None:
                    continue
                at = dict(zip(names, (*values, *own), strict=True))
                if isinstance(number, Distribution):
                    for bound, count in number.buckets:
                        family.add_sample(f"{self.name}_bucket", {**at, "le": bound}, count)
                    family.add_sample(f"{self.name}_count", at, number.count)
                    family.add_sample(f"{self.name}_sum", at, number.total)
                else:
                    family.add_sample(self.name, at, number)
        return family


INSTANCE = ("domain", "resource", "project")
VCPU = (*INSTANCE, "vcpu")
DETAILS = ("host", "instance", "vcpu")
"""Levels of detail; each adds series to those of the level before it."""


# One row per metric: type, name and help, then accessor and labels.
# fmt: off
AGENT: tuple[Row[AgentStatus], ...] = (
    Row("info", "amp_build_info", "Version of the agent.",
        lambda _: {version("amp-nova"): 1}, ("version",)),
    Row("gauge", "amp_cycle_last_success_timestamp_seconds",
        "When the last control cycle succeeded.",
        lambda a: a.last_success_s),
    Row("gauge", "amp_cycle_lateness_seconds", "How late the last periodic cycle started.",
        lambda a: a.lateness_s),
    Row("gauge", "amp_hypervisor_up", "Whether the hypervisor answers.",
        lambda a: a.hypervisor_up),
    Row("gauge", "amp_calibration_timestamp_seconds", "When the calibration in use was made.",
        lambda a: a.calibration.made_s),
    Row("gauge", "amp_core_type_coefficient_error_ratio",
        "Half the width of the confidence interval of a calibrated coefficient.",
        lambda a: a.calibration.errors, ("core_type",)),
    Row("counter", "amp_libvirt_calls_total", "Calls made to libvirt.",
        lambda a: a.libvirt_calls),
    Row("info", "amp_counters_info", "What counts the instructions of vCPUs, a series per source.",
        lambda a: {source: 1 for source, _ in a.counters}, ("source",)),
    Row("counter", "amp_thread_restarts_total", "Restarts of a helper thread that ended.",
        lambda a: {t.name: t.restarts for t in a.threads}, ("thread",)),
    Row("gauge", "amp_thread_last_success_timestamp_seconds",
        "When a helper thread last did its work, or started: reports, Placement, this page.",
        # Its start, so that one that never succeeds is noticed.
        lambda a: {t.name: t.last_success_s or t.started_s for t in a.threads},
        ("thread",)),
    Row("gauge", "amp_lease_remaining_seconds",
        "Seconds left of the lease when the last completed cycle renewed it.",
        lambda a: a.lease.left_s if a.lease else None),
    Row("counter", "amp_lease_expirations_total",
        "Times that the guard applied the safe state because no cycle had renewed the lease.",
        lambda a: a.lease.expirations if a.lease else None),
    Row("gauge", "amp_guard_up", "Whether a guard is running, which acts if the lease expires.",
        lambda a: a.lease.guarded if a.lease else None),
    Row("gauge", "amp_host_warnings",
        "What an operator has to know about the whole host, also in 'amp-nova status' and the log.",
        lambda a: Counter(w.about for w in a.warnings), ("about",)),
    Row("summary", "amp_cycle_duration_seconds", "Duration of control cycles by stage.",
        lambda a: a.stages, ("stage",)),
)
CYCLE: tuple[Row[Cycle], ...] = (
    Row("info", "amp_policy_info", "The policy that places best effort.",
        lambda r: {r.policy: 1}, ("policy",)),
    Row("gauge", "amp_core_type_coefficient_ratio", "Speed of a core type over the reference core.",
        # Without the explanation of the source: configuration ([topology] core_type).
        lambda r: {(t.name, (t.coefficient_source or r.topology.source).partition(" (")[0]):
                   t.coefficient for t in r.topology.core_types if t.coefficient is not None},
        ("core_type", "source")),
    Row("gauge", "amp_coefficient_drift_ratio",
        "Speedup of guests on a core type over what its coefficient says.",
        lambda r: r.profiles.drift(r.time_ns), ("core_type",)),
    Row("info", "amp_mode_info", "Whether bookings are enforced, or only observed.",
        lambda r: {"observe" if r.outcome.observing else "enforce": 1}, ("mode",)),
    Row("counter", "amp_migrations_total", "Moves of vCPUs between core types.",
        lambda r: r.totals.migrations, ("from", "to")),
    Row("counter", "amp_enforcement_drift_total", "Settings of vCPUs changed by others.",
        lambda r: {**dict.fromkeys(CHANGED, 0), **r.totals.drift}, ("cause",)),
    Row("counter", "amp_actuation_failures_total", "Changes that failed.",
        lambda r: {"read_only": 0, "refused": 0, **r.totals.failures}, ("reason",)),
    Row("counter", "amp_plans_rejected_total", "Invalid plans returned by the policy.",
        lambda r: r.totals.plans_rejected),
    Row("counter", "amp_writes_total", "Limits, affinities and CPU weights written.",
        lambda r: r.totals.writes),
)
HOST: tuple[Row[Snapshot], ...] = (
    Row("gauge", "amp_host_headroom_refcores", "Capacity that can still be booked.",
        lambda s: host_info.headroom_refcores(s.cycle, s.admits) if s.admits else None,
        ("core_type",)),
    Row("gauge", "amp_host_booked_refcores", "Booked capacity, in reference cores.",
        lambda s: sum(v.entitlement.booking.refcores or 0.0 for _, v in s.vcpus)),
    Row("gauge", "amp_host_delivered_refcores", "Reference cores delivered in the last window.",
        snapshot.delivered_by_kind, ("kind",)),
    Row("histogram", "amp_host_delivered_ratio",
        "Delivered over booked capacity of each vCPU, in minutes with demand.",
        snapshot.minutes_of_host),
    Row("counter", "amp_host_shortfall_refcore_seconds_total",
        "Booked capacity that was in demand but not delivered.",
        lambda s: s.totals.of("shortfall"), ("cause",)),
    Row("counter", "amp_host_cpu_seconds_total", "CPU time of vCPUs by core type.",
        lambda s: s.totals.of("cpu"), ("core_type",)),
    Row("gauge", "amp_host_unenforced_vcpus", "vCPUs whose booking is not enforced as booked.",
        snapshot.unenforced_by_reason, ("reason",)),
    Row("gauge", "amp_host_undefended_vcpus", "vCPUs whose booking is short without enforcement.",
        snapshot.undefended_by_cause, ("cause",)),
    Row("gauge", "amp_host_unfairness_ratio", "Greatest over least slowdown of best effort.",
        lambda s: slowdown.unfairness(list(snapshot.slowdowns(s).values()))),
)
ALL: tuple[Row[Snapshot], ...] = (
    Row("info", "amp_instance_problem_info", "Why the booking of an instance is not enforced.",
        snapshot.problems, (*INSTANCE, "reason")),
    Row("info", "amp_vcpu_unenforced_info", "Why a booking is not enforced as booked.",
        lambda s: {(*labels, why): 1 for labels, v in s.vcpus for why in host_info.unenforced(v)},
        (*VCPU, "reason")),
    Row("gauge", "amp_instance_slowdown_ratio",
        "Speed that a best-effort instance would have alone on this host over its recent speed.",
        snapshot.slowdowns, INSTANCE),
)
SUMMED: tuple[Row[Snapshot], ...] = (
    Row("gauge", "amp_vcpu_booked_refcores", "Booked capacity, in reference cores.",
        of_each(lambda v: v.entitlement.booking.refcores), VCPU, "amp_instance_booked_refcores"),
    Row("gauge", "amp_vcpu_booked_ips", "Booked capacity, in instructions per second.",
        of_each(lambda v: v.entitlement.booking.ips), VCPU, "amp_instance_booked_ips"),
    Row("gauge", "amp_vcpu_delivered_refcores", "Reference cores delivered in the last window.",
        of_each(lambda v: v.account.last.refcores), VCPU, "amp_instance_delivered_refcores"),
    Row("gauge", "amp_vcpu_delivered_ips", "Instructions per second over the last window.",
        of_each(lambda v: v.account.last.ips), VCPU, "amp_instance_delivered_ips"),
    Row("counter", "amp_vcpu_shortfall_refcore_seconds_total",
        "Booked capacity that was in demand but not delivered.",
        snapshot.shortfall, (*VCPU, "cause"), "amp_instance_shortfall_refcore_seconds_total"),
    Row("counter", "amp_vcpu_beyond_booking_refcore_seconds_total",
        "Capacity used beyond the booking while bookings are only observed.",
        snapshot.beyond_booking, VCPU, "amp_instance_beyond_booking_refcore_seconds_total"),
    Row("counter", "amp_vcpu_would_throttle_seconds_total",
        "Time for which enforcement would have throttled a vCPU, at least and at most.",
        snapshot.would_throttle, (*VCPU, "bound"), "amp_instance_would_throttle_seconds_total"),
    Row("counter", "amp_vcpu_throttled_seconds_total",
        "Time for which the kernel throttled a vCPU at its limit.",
        of_each(lambda v: v.reading.throttled_ns / 1e9 if v.reading.bandwidth else None), VCPU,
        "amp_instance_throttled_seconds_total"),
    Row("counter", "amp_vcpu_cpu_seconds_total", "CPU time by core type.",
        snapshot.cpu_seconds, (*VCPU, "core_type"), "amp_instance_cpu_seconds_total"),
    Row("counter", "amp_vcpu_reference_cpu_seconds_total", "CPU time times its coefficient.",
        of_each(lambda v: v.account.ref_s if v.account.cpu_s else None), VCPU,
        "amp_instance_reference_cpu_seconds_total"),
)
SUMS: tuple[Row[Snapshot], ...] = tuple(
    Row(row.kind, row.summed, row.help,
        partial(snapshot.by_instance, row.read), (*INSTANCE, *row.labels[len(VCPU):]))
    for row in SUMMED
)
INSTANCES: tuple[Row[DomainRecord], ...] = (
    Row("info", "amp_instance_info", "Name and flavor of an instance.",
        lambda d: {(d.domain.display_name, d.domain.flavor): 1}, ("name", "flavor")),
    Row("gauge", "amp_instance_scs_vcpus",
        "vCPUs of an instance, by the CPU type that its flavor promises (scs-0103).",
        lambda d: {kind: d.domain.plugged}
        if (kind := scs.cpu_type(d.domain.flavor, d.domain.specs)) else None,
        ("cpu_type",)),
    Row("histogram", "amp_instance_delivered_ratio",
        "Delivered over booked capacity of each vCPU, in minutes with demand.",
        snapshot.minutes_of_instance),
)
VCPUS: tuple[Row[VcpuRecord], ...] = (
    Row("gauge", "amp_vcpu_quota_cores", "Limit in force, as a wall-time share of one pCPU.",
        lambda v: v.reading.bandwidth.cores if v.reading.bandwidth else None),
    Row("gauge", "amp_vcpu_delivered_ratio",
        "Delivered over booked capacity while there was demand, over the last window.",
        lambda v: v.account.last.ratio if snapshot.measurable(v) else None),
    Row("gauge", "amp_vcpu_delay_bound_seconds",
        "How far a vCPU that wants to run may fall behind a core of its limit's speed.",
        lambda v: v.reading.bandwidth.delay_s if v.reading.bandwidth else None),
    Row("gauge", "amp_vcpu_delay_seconds",
        "How far a vCPU was behind its booking at the end of a cycle, worst of this minute.",
        lambda v: v.account.last.behind_s if snapshot.measurable(v) else None),
    Row("counter", "amp_vcpu_instructions_total", "Instructions retired, as counted on this host.",
        lambda v: v.reading.counts.instructions if v.reading.counts else None),
    Row("gauge", "amp_vcpu_efficiency_ratio",
        "Fast-core efficiency: instructions per cycle times utilization (kwon2011).",
        lambda v: v.profile.score),
    Row("gauge", "amp_vcpu_speedup_ratio",
        "Estimated speed on the fastest core type over the slowest.",
        lambda v: {e.source: e.value} if (e := v.profile.speedup) else None, ("source",)),
    Row("gauge", "amp_vcpu_speedup_error_ratio", "Standard error of the estimated speedup.",
        lambda v: {e.source: e.se} if (e := v.profile.speedup) else None, ("source",)),
)
IO_INSTANCES: tuple[Row[IoDomain], ...] = (
    Row("gauge", "amp_instance_combined_usage_ratio",
        "CPU utilization of the I/O threads plus network utilization (kumar2009).",
        lambda d: d.use.combined_ratio if d.use else None),
    Row("gauge", "amp_instance_io_kept_estimate_ratio",
        "Lower bound of the share of throughput that remains on slow cores.",
        lambda d: d.least_kept_ratio),
    Row("gauge", "amp_instance_io_effect_ratio",
        "Throughput just after the I/O threads moved to slow cores over just before.",
        lambda d: d.case.effect_ratio),
)
# fmt: on


class HostSeries:
    """The series of this host up to a level of ``DETAILS``; remembers what instances counted."""

    def __init__(self, detail: str) -> None:
        self._detail, self._totals = detail, VcpuTotals()

    def families(
        self,
        agent: AgentStatus,
        cycle: Cycle | None,
        io: Sequence[IoDomain] | None,
        admits: HostInfo | None,
    ) -> Iterator[Metric]:
        """Every metric; before the first cycle those of the agent itself.

        ``admits``: what may be booked on this host; ``None`` leaves the headroom out.
        """
        yield from (row.family((), [((), agent)]) for row in AGENT)
        if cycle is None:
            return
        snap = snapshot.snapshot(cycle, admits, self._totals)
        self._totals = snap.totals
        yield from (row.family((), [((), cycle)]) for row in CYCLE)
        yield from (row.family((), [((), snap)]) for row in HOST)
        if self._detail == "host":
            return
        yield from (row.family((), [((), snap)]) for row in (*ALL, *SUMS))
        yield from (row.family(INSTANCE, snap.instances) for row in INSTANCES)
        if self._detail == "instance":
            return
        yield from (row.family((), [((), snap)]) for row in SUMMED)
        yield from (row.family(VCPU, snap.vcpus) for row in VCPUS)
        # I/O work is sampled less often than cycles run: instances that are gone are left out.
        present = {d.domain.resource for _, d in snap.instances}
        domains = [
            ((d.reading.name, d.reading.resource, d.reading.project), d)
            for d in io or ()
            if d.reading.resource in present and not d.reading.failure
        ]
        if io is not None:
            yield from (row.family(INSTANCE, domains) for row in IO_INSTANCES)
