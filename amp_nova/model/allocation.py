# SPDX-License-Identifier: Apache-2.0
"""What is in force for a vCPU (CPU bandwidth limit, affinity), and changes to it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct, structs

from amp_nova.model.bandwidth import Bandwidth, SafeState, Step
from amp_nova.model.observation import DomainReading, Observation, VcpuKey
from amp_nova.model.topology import Topology


class Allocation(Struct, frozen=True):
    """What is in force for one vCPU: its affinity, and its limit (``None``: no limit).

    ``allowed``: as in ``VcpuReading``; ``uncounted``: why its instructions are not counted,
    ``None`` if they are; ``burst_us``: its ``cpu.max.burst``; ``realtime`` and ``ceilings``: as in
    ``DomainReading``.
    """

    pcpus: frozenset[int]
    bandwidth: Bandwidth | None
    allowed: frozenset[int] = frozenset()
    uncounted: str | None = ""
    burst_us: int = 0
    realtime: bool = False
    ceilings: tuple[tuple[str, Bandwidth], ...] = ()


Allocations = Mapping[VcpuKey, Allocation]
Positions = Mapping[VcpuKey, int | None]
"""The position of the core type that each vCPU's affinity lies within (``Topology.position``)."""


def of_host(domains: Iterable[DomainReading]) -> dict[VcpuKey, Allocation]:
    """What is in force for every vCPU of these domains."""
    return {
        (reading.domain.resource, v.index): Allocation(
            v.pcpus,
            v.bandwidth,
            v.allowed,
            None if v.counts is not None else v.uncounted or "",
            reading.bursts_us.get(v.index, 0),
            v.index in reading.realtime,
            reading.ceilings,
        )
        for reading in domains
        for v in reading.vcpus
    }


def positions(topology: Topology, allocations: Allocations) -> Positions:
    """Where vCPUs are."""
    affinities = {a.pcpus for a in allocations.values()}
    position_of = {pcpus: topology.position(pcpus) for pcpus in affinities}
    return {key: position_of[allocation.pcpus] for key, allocation in allocations.items()}


def last_positions(observation: Observation, positions: Positions) -> Positions:
    """Where vCPUs are; those that may be on several core types are where they ran last."""
    last = {
        (d.domain.resource, v.index): observation.topology.position({v.last_pcpu})
        for d in observation.domains
        for v in d.vcpus
        if v.last_pcpu is not None
    }
    return {key: last.get(key) if at is None else at for key, at in positions.items()}


@dataclass(frozen=True, slots=True)
class Change:
    """The writes that one vCPU needs, in an order that never gives it more than it booked."""

    key: VcpuKey
    steps: tuple[Step, ...]
    reason: str = ""


SafeStates = Mapping[VcpuKey, SafeState]


@dataclass(frozen=True, slots=True)
class Changes:
    """All writes of one cycle. ``cpu_weights``: the new weight of each instance that needs one.

    ``safe``: the safe state of every managed vCPU, to be recorded before the first write.
    """

    vcpus: tuple[Change, ...] = ()
    cpu_weights: Mapping[str, int] = field(default_factory=dict)
    safe: SafeStates = field(default_factory=dict, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.vcpus or self.cpu_weights)


LOCKED, LEASE = "locked", "lease"
"""The reasons of a ``Failure`` if another process holds the cycle lock, or the lease is lost."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a change could not be made: a short reason that labels a counter, and a sentence."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The failures among ``Changes``: by vCPU, and by instance for the CPU weight.

    A vCPU or instance that is gone by the time of the write is not a failure. ``observing``: no
    change was made, because bookings are only observed.
    """

    failures: Mapping[VcpuKey, Failure] = field(default_factory=dict)
    weight_failures: Mapping[str, Failure] = field(default_factory=dict)
    observing: bool = False


NOTHING_DONE = Outcome()


def in_force(before: Allocations, changes: Changes, outcome: Outcome) -> Allocations:
    """What is in force after these changes, of which some may have failed."""
    if not changes.vcpus:
        return before
    now = dict(before)
    for change in changes.vcpus:
        for step in change.steps if change.key not in outcome.failures else ():
            if step.pcpus is None:
                now[change.key] = structs.replace(now[change.key], bandwidth=step.bandwidth)
            else:
                now[change.key] = structs.replace(now[change.key], pcpus=step.pcpus)
    return now
