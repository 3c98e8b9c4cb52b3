# SPDX-License-Identifier: Apache-2.0
"""One host of a simulated cloud: its instances, how they are packed, and what schedulers see."""

from dataclasses import dataclass, replace

from msgspec import structs

from amp_nova.admission.packing import pack
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.hardware.effective_speed import bookable_refcores
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology
from amp_nova.scheduling import host_fit, placement_score
from amp_nova.scheduling.demands import demands_of
from amp_nova.scheduling.host_fit import HostCapacity, HostFit
from amp_nova.scheduling.placement_score import BestEffortDemand
from amp_nova.wire.host_report import HostReport, Origin, ReportedInstance, ReportedVcpu, Speedup

RESERVE_RATIO = 0.05
"""The default of ``[agent] reserve_ratio``."""


@dataclass(frozen=True, slots=True)
class CloudFlavor:
    """A flavor with its usual work; ``share`` of all arrivals.

    ``sensitivity``: how much its work gains from faster cores, as in ``scheduling.sensitivity``;
    agents have measured it and schedulers know it.
    """

    name: str
    booking: Booking
    share: float = 1.0
    sensitivity: float = 1.0


class CloudHost:
    """A host; what is derived from its instances is computed once after each change."""

    def __init__(self, name: str, topology: Topology, reserve_ratio: float = RESERVE_RATIO) -> None:
        pcpus = frozenset(p.id for p in topology.pcpus)
        origin = Origin(name, "boot", 0, 0.0)
        self.report = HostReport(origin, topology, pcpus, reserve_ratio)
        self.vcpus = 0
        self.bookable_refcores = sum(bookable_refcores(topology, pcpus).values())
        self.unplaced = 0
        """How many admitted vCPUs have no place."""
        self.fits: dict[str, HostFit] = {}
        self.scores: dict[str, tuple[float, float]] = {}
        """Results by flavor name, like ``fits``; both are discarded at every change."""
        self._instances: dict[str, ReportedInstance] = {}
        self._capacity: HostCapacity | None = None
        self._demand: BestEffortDemand | None = None

    @property
    def capacity(self) -> HostCapacity:
        """The capacity that bookings leave."""
        if self._capacity is None:
            self._capacity = host_fit.capacity_of(self.report)
        return self._capacity

    @property
    def demand(self) -> BestEffortDemand:
        """The best-effort demand that shares this capacity."""
        if self._demand is None:
            free = {f.core_type.name: f.free_cores for f in self.capacity.free}
            self._demand = placement_score.best_effort_demand(self.report, free)
        return self._demand

    @property
    def best_effort_refcores(self) -> float:
        """What best-effort vCPUs get, in reference cores, as schedulers estimate it."""
        demand, idle = self.demand, 0.0
        left = float(demand.vcpus)
        # The scheduler values idle cores too, and the fastest are the last to idle.
        for name, cores in reversed(demand.cores.items()):
            used = min(left, cores)
            left -= used
            idle += placement_score.idle_worth(demand.coefficients[name]) * (cores - used)
        return demand.throughput - idle

    def add(self, resource: str, flavor: CloudFlavor) -> None:
        """An instance starts."""
        booking, allowed = flavor.booking, cpulist.show(self.report.bookable)
        vcpus = tuple(
            ReportedVcpu(v.index, v.refcores, v.ips, allowed, speedup=self._speedup(v, flavor))
            for v in booking.vcpus
        )
        self._instances[resource] = ReportedInstance(
            resource, vcpus, booking.core_type, booking.weight
        )
        self.vcpus += len(vcpus)
        self._changed(repack=booking.booked)

    def remove(self, resource: str) -> None:
        """An instance ends."""
        gone = self._instances.pop(resource)
        self.vcpus -= len(gone.vcpus)
        self._changed(repack=gone.booked)

    def _speedup(self, vcpu: VcpuBooking, flavor: CloudFlavor) -> Speedup | None:
        """The speedup that the agent measures; ``None`` for bookings, or with one core type."""
        coefficients = [t.coefficient for t in self.report.topology.core_types if t.coefficient]
        if vcpu.kind != "best_effort" or len(coefficients) < 2:
            return None
        slow, fast = (
            1.0 + flavor.sensitivity * (c - 1.0) for c in (coefficients[0], coefficients[-1])
        )
        return Speedup(fast / slow)

    def _changed(self, *, repack: bool) -> None:
        if repack:
            self._pack()
        self.report = replace(self.report, instances=tuple(self._instances.values()))
        self.fits, self.scores = {}, {}
        self._capacity = self._demand = None

    def _pack(self) -> None:
        """Pack all bookings as the agent does, which keeps vCPUs where they are if it can."""
        topology = self.report.topology
        demands = [
            demand
            for resource, instance in self._instances.items()
            for demand in demands_of(instance, self.report, resource)
        ]
        placed = pack(demands, topology, self.report.reserve_ratio).placed
        self.unplaced = len(demands) - len(placed)
        for resource, instance in self._instances.items():
            if instance.booked:
                vcpus = []
                for vcpu in instance.vcpus:
                    pcpu = placed.get((resource, vcpu.index))
                    core_type = None if pcpu is None else topology.type_of(pcpu)
                    name = None if core_type is None else core_type.name
                    vcpus.append(structs.replace(vcpu, core_type=name, pcpu=pcpu))
                self._instances[resource] = structs.replace(instance, vcpus=tuple(vcpus))
