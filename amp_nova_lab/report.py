# SPDX-License-Identifier: Apache-2.0
"""The result of a scenario: what is measured for every guest, and its form for JSON.

Booked guests are measured second by second, as their tenants would do it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from amp_nova.accounting import slowdown as slowdown_
from amp_nova.accounting.delivery import DEMAND_LEAST_RATIO
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.model.delivered import owed
from amp_nova.model.observation import Usage
from amp_nova.model.topology import Topology
from amp_nova_lab.counters import REFERENCE_IPS, reference_ips
from amp_nova_lab.guest import Meter
from amp_nova_lab.host import GuestOutcome, SimHost
from amp_nova_lab.programs import percentile
from amp_nova_lab.scenarios.scenario import Guest, Scenario

WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """Delivered over booked capacity of one guest: over the run, and in its extreme windows."""

    ratio: float | None = None
    least: float | None = None
    most: float | None = None


class Windows:
    """The windows of one guest. Several vCPUs count together, as the ratio of their sums.

    Instructions count as the seconds they take the reference core, so that vCPUs with bookings of
    both kinds can be added up.
    """

    def __init__(self, booking: Booking, topology: Topology) -> None:
        self._reference_ips = reference_ips(topology) or REFERENCE_IPS
        self._counted = [v.ips is not None for v in booking.vcpus]
        self._refcores = [
            v.refcores if v.ips is None else v.ips / self._reference_ips for v in booking.vcpus
        ]
        self._coefficients = [t.coefficient or 0.0 for t in topology.core_types]
        nothing = (0.0,) * len(self._coefficients)
        self._before = (Meter(nothing, full_speed_s=nothing),) * len(self._refcores)
        self._owed_ref_s = 0.0
        self._delivered_ref_s = 0.0
        self._least = math.inf
        self._most = -math.inf
        self.last: float | None = None
        """Ratio of the last window, ``None`` without demand in it."""

    def close(self, meters: tuple[Meter, ...], wall_s: float) -> None:
        """End a window; one that is shorter than usual counts only in the ratio of the run."""
        owed, delivered, booked = 0.0, 0.0, 0.0
        vcpus = zip(self._refcores, self._counted, self._before, meters, strict=True)
        for refcores, counted, before, after in vcpus:
            if refcores is None:
                continue
            delivered_ref_s, owed_ref_s = self._vcpu(
                before, after, refcores, wall_s, counted=counted
            )
            delivered += delivered_ref_s
            owed += owed_ref_s
            booked += refcores
        self._before = meters
        self._owed_ref_s += owed
        self._delivered_ref_s += delivered
        demanded = owed > DEMAND_LEAST_RATIO * booked * wall_s
        self.last = delivered / owed if demanded else None
        if self.last is not None and wall_s >= WINDOW_S * 0.999:
            self._least = min(self._least, self.last)
            self._most = max(self._most, self.last)

    def _vcpu(
        self, before: Meter, after: Meter, refcores: float, wall_s: float, *, counted: bool
    ) -> tuple[float, float]:
        """Delivered and owed, in reference-core seconds."""
        by_type = [b - a for a, b in zip(before.run_s, after.run_s, strict=True)]
        if counted:
            delivered = (after.instructions - before.instructions) / self._reference_ips
        else:
            # A vCPU that moved within the window ran on several core types.
            worth = zip(before.full_speed_s, after.full_speed_s, self._coefficients, strict=True)
            delivered = sum((b - a) * c for a, b, c in worth)
        waited_s, throttled_s = after.wait_s - before.wait_s, after.throttled_s - before.throttled_s
        used = Usage(wall_s, sum(by_type), waited_s, throttled_s)
        return delivered, owed(used, refcores, delivered)

    def result(self) -> Delivered:
        """What was delivered so far; all ``None`` without a booking or without demand."""
        if not self._owed_ref_s:
            return Delivered()
        ratio = self._delivered_ref_s / self._owed_ref_s
        if self._most == -math.inf:
            return Delivered(ratio)
        return Delivered(ratio, self._least, self._most)


DIGITS = 6


@dataclass(frozen=True, slots=True)
class VmResult:
    """One guest; ``doc/source/user/simulator.rst`` defines every number."""

    progress_refcores: float
    fast_share: float | None
    slowdown: float | None
    completion_s: float | None
    booked_refcores: float | None
    delivered_ratio: float | None
    delivered_ratio_min: float | None
    delivered_ratio_max: float | None


@dataclass(frozen=True, slots=True)
class VmResultWithIo(VmResult):
    """A guest that transfers data; ``combined_usage_ratio`` is that of kumar2009."""

    io_bytes_s: int
    combined_usage_ratio: float


@dataclass(frozen=True, slots=True)
class VmResultWithRequests(VmResult):
    """A guest that serves requests; latencies are from arrival to end."""

    requests_completed: int
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """The whole run."""

    scenario: str
    policy: str
    duration_s: float
    throughput: float | None
    asp: float | None
    unfairness: float | None
    migrations: int
    cross_llc_migrations: int
    fast_idle_ratio: float
    vms: dict[str, VmResult]


def of_run(
    scenario: Scenario, policy: str, host: SimHost, delivered: Mapping[str, Delivered]
) -> Result:
    """The result of a run that has ended; ``delivered`` by the names of booked guests."""
    outcomes = {g.name: host.outcome(g.name) for g in scenario.guests}
    vms = {}
    for guest in scenario.guests:
        outcome, windows = outcomes[guest.name], delivered.get(guest.name, Delivered())
        vms[guest.name] = _of_guest(scenario, guest, outcome, windows)
    slowdowns = [v.slowdown for v in vms.values() if v.slowdown is not None]
    gains = [o.speed / o.alone_slowest - 1.0 for o in outcomes.values() if o.alone_slowest]
    fastest = scenario.topology.core_types[-1].name
    fast_s = len(scenario.topology.pcpus_of(fastest)) * scenario.duration_s
    busy_s = sum(m.run_s[-1] for o in outcomes.values() for m in o.meters)
    return Result(
        scenario=scenario.name,
        policy=policy,
        duration_s=scenario.duration_s,
        throughput=sum(v.progress_refcores for v in vms.values()) / len(vms) if vms else None,
        asp=sum(gains) if vms else None,
        unfairness=slowdown_.unfairness(slowdowns),
        migrations=sum(o.migrations for o in outcomes.values()),
        cross_llc_migrations=sum(o.cross_llc_migrations for o in outcomes.values()),
        fast_idle_ratio=max(0.0, 1.0 - busy_s / fast_s),
        vms=vms,
    )


def _of_guest(
    scenario: Scenario, guest: Guest, outcome: GuestOutcome, delivered: Delivered
) -> VmResult:
    run_s = sum(sum(m.run_s) for m in outcome.meters)
    fast_s = sum(m.run_s[-1] for m in outcome.meters)
    usual: dict[str, Any] = {
        "progress_refcores": outcome.speed,
        "fast_share": fast_s / run_s if run_s else None,
        "slowdown": outcome.alone / outcome.speed if outcome.speed else None,
        "completion_s": outcome.completion_s,
        "booked_refcores": _booked_refcores(guest.booking.vcpus, scenario.topology),
        "delivered_ratio": delivered.ratio,
        "delivered_ratio_min": delivered.least,
        "delivered_ratio_max": delivered.most,
    }
    if guest.workload.requests is not None:
        p50, p95, p99 = (percentile(outcome.latencies_s, ratio) for ratio in (0.5, 0.95, 0.99))
        return VmResultWithRequests(
            **usual,
            requests_completed=len(outcome.latencies_s),
            latency_p50_s=p50,
            latency_p95_s=p95,
            latency_p99_s=p99,
        )
    bytes_s, usage_ratios, wall_s = [], [], scenario.duration_s
    workloads = guest.workload.each(len(outcome.meters))
    for workload, meter in zip(workloads, outcome.meters, strict=True):
        if (io := workload.io) is not None:
            bytes_s.append(meter.progress_ref_s / io.work_ref_s_per_byte / wall_s)
            usage_ratios.append(sum(meter.run_s) / wall_s + bytes_s[-1] / io.line_bytes_s)
    if not bytes_s:
        return VmResult(**usual)
    usage_ratio = sum(usage_ratios) / len(usage_ratios)
    return VmResultWithIo(**usual, io_bytes_s=round(sum(bytes_s)), combined_usage_ratio=usage_ratio)


def _booked_refcores(vcpus: Iterable[VcpuBooking], topology: Topology) -> float | None:
    """Mean over the vCPUs with a booking; ``None`` for Ips without a reference."""
    reference = reference_ips(topology)
    booked = [
        v.ips / reference if v.ips is not None and reference is not None else v.refcores
        for v in vcpus
        if v.kind != "best_effort"
    ]
    refcores = [b for b in booked if b is not None]
    return sum(refcores) / len(refcores) if refcores and len(refcores) == len(booked) else None


def rounded(value: object) -> object:
    """A value for JSON: results as dictionaries, and every float rounded."""
    if is_dataclass(value) and not isinstance(value, type):
        return rounded(asdict(value))
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return round(value, DIGITS) + 0.0 if isinstance(value, float) else value
