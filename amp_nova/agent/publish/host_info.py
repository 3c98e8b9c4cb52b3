# SPDX-License-Identifier: Apache-2.0
"""What a host offers and has left to book, its host report, and what its agent knows of itself.

Reasons are short words for metrics and alerts; ``amp-nova explain`` has the sentences.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from amp_nova.accounting.slowdown import slowdown
from amp_nova.admission import free_cores
from amp_nova.admission.free_cores import FreeCores, Option
from amp_nova.admission.packing import least_refcores
from amp_nova.agent.cycle import Cycle, DomainRecord, VcpuRecord
from amp_nova.agent.guarding import LeaseStatus
from amp_nova.agent.publish.host_warnings import HostWarning
from amp_nova.agent.threads import HelperThread
from amp_nova.exceptions import ConfigInvalid
from amp_nova.flavor.extra_specs import Booking, VcpuBooking, examine
from amp_nova.flavor.placement_resources import claims
from amp_nova.hardware.effective_speed import effective_speed, for_admission, thread_of_empty_core
from amp_nova.model import cpulist
from amp_nova.model.observation import DomainReading, Observation
from amp_nova.model.topology import CoreType, Topology
from amp_nova.wire.host_report import HostReport, Origin, ReportedInstance, ReportedVcpu, Speedup


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What a host report contains besides the record of a cycle.

    ``node``: the host's hypervisor_hostname; ``bookable``: the pCPUs that new instances may use,
    ``None`` for all; ``smt``: how bookings share the hardware threads of a core.
    """

    node: str
    bookable: frozenset[int] | None = None
    reserve_ratio: float = 0.0
    smt: str = "shared"

    def bookable_of(self, observation: Observation) -> frozenset[int]:
        """The online pCPUs that new instances may use, within the cpuset of all guests."""
        pcpus = frozenset(p.id for p in observation.topology.pcpus)
        for bound in (self.bookable, observation.usable):
            pcpus = pcpus if bound is None else pcpus & bound
        return pcpus


@dataclass(frozen=True, slots=True)
class CalibrationStatus:
    """When the calibration in use was made, in seconds since the epoch, and how exact it is.

    ``errors``: half the width of the confidence interval of each coefficient, by core type.
    """

    made_s: float | None
    errors: Mapping[str, float]


NOT_CALIBRATED = CalibrationStatus(None, {})


@dataclass(frozen=True, slots=True)
class Distribution:
    """A summary or histogram. ``buckets``: upper bound and cumulative count of each bucket."""

    count: float
    total: float
    buckets: tuple[tuple[str, float], ...] = ()


@dataclass(slots=True)
class AgentStatus:
    """What the agent knows about itself; times are in seconds since the epoch.

    ``counters``: how many vCPUs each source counts, by source and remark.
    """

    clock: Callable[[], float] = time.time
    last_success_s: float | None = None
    lateness_s: float | None = None
    hypervisor_up: bool | None = None
    libvirt_calls: int | None = None
    calibration: CalibrationStatus = NOT_CALIBRATED
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    stages: Mapping[str, Distribution] = field(default_factory=dict)
    threads: tuple[HelperThread, ...] = ()
    lease: LeaseStatus | None = None
    warnings: tuple[HostWarning, ...] = ()


def shared_pcpus(text: str | None) -> frozenset[int] | None:
    """The pCPUs that Nova gives to instances (``[nova] cpu_shared_set``); ``None`` for all.

    Raises ``ConfigInvalid`` if the text is not a list of CPUs.
    """
    if text is None:
        return None
    try:
        pcpus = cpulist.parse_cpuset(text) if text.strip() else frozenset[int]()
        if text.strip() and not pcpus:
            raise ValueError("it names no pCPU")
        return pcpus
    except ValueError as exc:
        raise ConfigInvalid(
            f"[nova] cpu_shared_set = {text} is not valid: {exc}; copy the value from nova.conf"
        ) from exc


def headroom_refcores(cycle: Cycle, info: HostInfo) -> Mapping[str, float]:
    """Unbooked capacity by core type, in reference cores, without the operator's reserve.

    A core type whose coefficient is unknown is left out. The capacity of over-booked vCPUs is not
    subtracted, because they have no place. Free threads count by what they are worth next to a busy
    sibling, as in ``bookable_refcores``.
    """
    topology = for_admission(cycle.topology, info.smt)
    free = free_cores.empty(topology, info.reserve_ratio)
    for home in (e.home for e in cycle.entitlements.values()):
        if home.pcpu in free.cores and home.cores is not None:
            shared = math.inf if home.whole_core else home.cores
            free.take(Option(home.cores, shared, frozenset({home.pcpu})), home.pcpu)
    refcores = {t.name: 0.0 for t in topology.core_types if t.coefficient is not None}
    for pcpu in info.bookable_of(cycle.observation):
        core_type = topology.type_of(pcpu)
        if core_type is not None and core_type.name in refcores:
            refcores[core_type.name] += max(0.0, free.cores[pcpu]) * _worth(core_type, pcpu, free)
    return refcores


def unclaimed_refcores(cycle: Cycle) -> Mapping[str, float]:
    """What instances without a claim in Placement book, by the core type that they are on.

    Instances that do not run count on the core type that they require, else on the slowest.
    """
    topology, by_type = cycle.topology, defaultdict[str, float](float)
    usual = next((t.name for t in topology.core_types if t.coefficient is not None), "")
    for reading, booking in _bookings(cycle):
        domain = reading.domain
        if claims(domain.specs):
            continue
        for vcpu in _plugged(reading, booking):
            entitlement = cycle.entitlements.get((domain.resource, vcpu.index))
            on = entitlement.home.core_type if entitlement else None
            refcores = vcpu.refcores if vcpu.ips is None else least_refcores(vcpu.ips, topology)
            by_type[on or booking.core_type or usual] += refcores or 0.0
    return by_type


def _worth(core_type: CoreType, pcpu: int, free: FreeCores) -> float:
    """What all of a pCPU's time is worth to further bookings, in reference cores."""
    siblings = () if pcpu in free.whole else free.siblings.get(pcpu, ())
    if free.unbooked((pcpu, *siblings)):
        return thread_of_empty_core(core_type, 1 + len(siblings))
    return effective_speed(core_type, 1.0 if siblings else 0.0) or 0.0


def unenforced(vcpu: VcpuRecord) -> dict[str, float]:
    """The reasons why a booking is not enforced as booked, each with value 1; empty if it is.

    ``failed``: the vCPU could not be changed; ``excluded``: it is paused, or somebody else sets its
    limits; ``unverifiable``: its instructions are not counted; ``no_core_type``: no core type of
    the host can serve it, or its coefficient is unknown; ``over_booked``: it found no capacity;
    ``ineffective``: its limit is written, but something else decides (``control.entitlement``);
    ``below_minimum``: the kernel accepts no limit as low as the booking.
    """
    entitlement = vcpu.entitlement
    booking, home = entitlement.booking, entitlement.home
    if booking.kind == "best_effort":
        return {}
    reasons = ["failed"] if vcpu.failure else []
    if entitlement.note is not None and entitlement.governed_by == "excluded":
        reasons.append("excluded")
    elif entitlement.note is not None:
        uncounted = booking.ips is not None and vcpu.reading.counts is None
        reasons += ["unverifiable"] if uncounted else []
        reasons += ["ineffective"] if entitlement.ineffective else []
        if home.cores is not None and home.pcpu is None:
            reasons.append("over_booked")
        elif not (uncounted or entitlement.ineffective):
            reasons.append("no_core_type" if home.cores is None else "below_minimum")
    return dict.fromkeys(reasons, 1)


def slowdown_of(record: DomainRecord, topology: Topology) -> float | None:
    """The slowdown of a best-effort instance; ``None`` if unknown, or if it has a booking.

    What the limit of a booking takes is not a slowdown.
    """
    if any(v.entitlement.booking.kind != "best_effort" for v in record.vcpus):
        return None
    speedups = [(v.profile.sampled or v.profile.speedup, v.account.recent) for v in record.vcpus]
    shared = [(speedup.value if speedup else None, recent) for speedup, recent in speedups]
    usable = frozenset[int]().union(*(v.entitlement.allowed for v in record.vcpus))
    pcpus = [len(usable & topology.pcpus_of(t.name)) for t in topology.core_types]
    return slowdown(shared, topology.core_types, pcpus)


def host_report(cycle: Cycle, info: HostInfo, origin: Origin, healthy: bool = True) -> HostReport:
    """The host report of a cycle."""
    bookable = info.bookable_of(cycle.observation)
    records = {d.domain.resource: d.vcpus for d in cycle.domains}
    return HostReport(
        origin,
        for_admission(cycle.topology, info.smt),
        bookable,
        info.reserve_ratio,
        tuple(
            _instance(booking, reading, bookable, records.get(reading.domain.resource, ()))
            for reading, booking in _bookings(cycle)
        ),
        healthy,
    )


def _bookings(cycle: Cycle) -> Iterator[tuple[DomainReading, Booking]]:
    """Every instance with its booking, best effort or not, and those with one that do not run.

    Nova may start the latter at any time, without asking.
    """
    for reading in cycle.observation.domains:
        # If it is invalid, the agent treats it as best effort, and the scheduler must do the same.
        yield reading, cycle.instances[reading.domain.resource].booking
    for reading in cycle.observation.inactive:
        domain = reading.domain
        booking, _ = examine(domain.specs, domain.vcpus)
        if booking is not None and booking.booked and domain.resource not in cycle.instances:
            yield reading, booking


def _plugged(reading: DomainReading, booking: Booking) -> Iterator[VcpuBooking]:
    """The vCPUs of an instance that exist, or were plugged since its definition was read."""
    unplugged = reading.domain.unplugged - {v.index for v in reading.vcpus}
    return (v for v in booking.vcpus if v.index not in unplugged)


def _instance(
    booking: Booking,
    reading: DomainReading,
    bookable: frozenset[int],
    records: Iterable[VcpuRecord],
) -> ReportedInstance:
    domain = reading.domain
    # A vCPU that cannot be read keeps its booking: its capacity must not be offered again.
    vcpus = {
        v.index: ReportedVcpu(
            v.index, v.refcores, v.ips, cpulist.show(reading.allowed.get(v.index) or bookable)
        )
        for v in _plugged(reading, booking)
        if v.kind != "best_effort"
    }
    vcpus |= {v.reading.index: _vcpu(v) for v in records}
    return ReportedInstance(
        domain.resource,
        tuple(vcpus[index] for index in sorted(vcpus)),
        booking.core_type,
        booking.weight,
        booking.efficiency,
        domain.flavor_id,
        domain.image,
    )


def _vcpu(vcpu: VcpuRecord) -> ReportedVcpu:
    entitlement, reading, profile = vcpu.entitlement, vcpu.reading, vcpu.profile
    utilization = profile.score / profile.ipc if profile.score is not None and profile.ipc else None
    speedup = profile.speedup
    return ReportedVcpu(
        reading.index,
        entitlement.booking.refcores,
        entitlement.booking.ips,
        cpulist.show(reading.allowed),
        entitlement.core_type,
        entitlement.home.pcpu,
        utilization and round(utilization, 4),
        Speedup(round(speedup.value, 4), round(speedup.se, 4)) if speedup else None,
    )
