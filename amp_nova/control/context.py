# SPDX-License-Identifier: Apache-2.0
"""The inputs of entitlements, and their parts: terms, instances, the packing, homes and shares."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from amp_nova.admission.packing import Demand, Packing
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.model import cpu_weight
from amp_nova.model.allocation import Allocation
from amp_nova.model.observation import Domain, VcpuKey
from amp_nova.model.topology import CoreType, Topology


@dataclass(frozen=True, slots=True)
class Terms:
    """How the operator wants bookings enforced.

    ``one_pcpu``: keep a vCPU on the pCPU it was packed onto rather than on any of its core type;
    ``cycle_s``: the time in which banked time is spent; ``tick_s``: the time between two samples of
    a vCPU whose instructions are counted; ``smt``: how bookings share the hardware threads of a
    core (``effective_speed.SMT_MODES``); ``one_limit``: all vCPUs of an instance have the same
    limit.
    """

    reserve_ratio: float = 0.0
    one_pcpu: bool = False
    cycle_s: float = 1.0
    tick_s: float = 0.05
    smt: str = "shared"
    one_limit: bool = False


class Instance(Struct, frozen=True):
    """One instance on this host, booked or not; equal values lead to equal decisions.

    ``domain`` and the flavor alone determine ``booking``; ``problem``: why it is treated as best
    effort, if it is; ``adaptive``: the own coefficients of its vCPUs convert its booking. The
    others change while it runs: ``vcpus``: what is in force for each, by index, without the limits,
    on which nothing here depends; ``excluded``: why it must not be changed (paused, limited
    elsewhere), ``None`` if it may be; ``cpu_weight``: what it has now, ``None`` if amp-nova must
    not change it; ``coefficients``: its vCPUs' own coefficients, by index and core type.
    """

    domain: Domain
    booking: Booking
    problem: str | None = None
    adaptive: bool = False
    vcpus: Mapping[int, Allocation] = MappingProxyType({})
    excluded: str | None = None
    cpu_weight: int | None = None
    coefficients: Mapping[int, Mapping[str, float]] = MappingProxyType({})

    @property
    def resource(self) -> str:
        """Its UUID."""
        return self.domain.resource

    @property
    def least_weight(self) -> bool:
        """Whether it has the CPU weight of best effort."""
        return self.cpu_weight == cpu_weight.best_effort(len(self.vcpus))

    def booking_of(self, index: int) -> VcpuBooking:
        """The booking of a vCPU; a vCPU that the booking does not include is best effort."""
        vcpus = self.booking.vcpus
        return vcpus[index] if index < len(vcpus) else VcpuBooking(index)


MOVED = "somebody else keeps changing its affinity or CPU weight: run 'amp-nova pause' before that"
"""The one reason for which an instance is excluded, but its limits still fall to its booking."""

Instances = Mapping[str, Instance]
"""Instances by UUID."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a vCPU is placed: a core type, and the pCPU that it was packed onto.

    ``pcpu``: ``None`` if it found no capacity (over-booked). ``cores``: the share of one pCPU that
    its booking needs in the worst case; ``max_cores``: the largest share that it may use with a
    soft limit or in a burst; ``coefficient``: its own coefficient of the core type, if it has one;
    ``whole_core``: the siblings of its pCPU are kept free.
    """

    core_type: str | None = None
    pcpu: int | None = None
    cores: float | None = None
    max_cores: float | None = None
    coefficient: float | None = None
    whole_core: bool = False


Follows = Literal["nothing", "speed", "counts", "falls"]
"""What changes a limit from cycle to cycle: nothing, the speed of the pCPU, the counted
instructions, or any of them, but only to a lower one."""


class Share(Struct, frozen=True):
    """The CPU time that a vCPU may use, as long as nothing is carried over from earlier cycles.

    ``cores``: of one pCPU at its calibrated speed, above 1 if the booking needs more than it gives,
    ``None`` for no limit; ``period_us``: the period of its limit, ``None``
    for one that suits ``cores``; ``burst_s``: seconds of the booking that it may bank.
    ``by_core_type``: of best effort that competes with bookings, the share on each core type that a
    policy may choose.
    """

    cores: float | None = None
    period_us: int | None = None
    follows: Follows = "nothing"
    burst_s: float = 0.0
    by_core_type: Mapping[str, float] = {}

    def on(self, core_type: CoreType | None) -> float | None:
        """The share on a core type; ``None``, for a vCPU on several types, gives the lowest."""
        shares = self.by_core_type
        if not shares:
            return self.cores
        lowest = min(shares.values())
        return lowest if core_type is None else shares.get(core_type.name, lowest)


@dataclass(frozen=True, slots=True)
class Packed:
    """All booked vCPUs of a host: their demands, and the packing of these."""

    demands: Mapping[VcpuKey, Demand]
    packing: Packing
    kept_free: frozenset[int] = frozenset()
    """Siblings of the pCPUs that have their core to themselves: nothing may run there."""

    def pcpus(self) -> dict[VcpuKey, int | None]:
        """The pCPU of each vCPU, ``None`` if it found none: input of the next packing."""
        return {key: self.packing.placed.get(key) for key in self.demands}


@dataclass(frozen=True, slots=True)
class Context:
    """What the entitlements of one host depend on, apart from its instances.

    ``topology``: the topology used for packing (``effective_speed.for_admission``);
    ``kept_free_before``: the pCPUs that the last packing kept free; ``placing``: whether a policy
    places best effort.
    """

    topology: Topology
    terms: Terms
    packed: Packed
    kept_free_before: frozenset[int] = frozenset()
    placing: bool = False
