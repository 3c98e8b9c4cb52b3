# SPDX-License-Identifier: Apache-2.0
"""What runs in a guest: its speed on each core type, when it wants a pCPU and what it waits for.

Work is counted in seconds alone on the slowest core type.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from msgspec import Meta, structs
from msgspec import field as key

from amp_nova.model.topology import Topology
from amp_nova_lab.scenarios.document import (
    Keys,
    NotNegative,
    Place,
    Positive,
    Ratio,
    one_of,
)
from amp_nova_lab.scenarios.hosts import STEP_MIN_S, Rate, Step

BYTES_MOST = 1e12


class Io(Keys, frozen=True):
    """What each vCPU transfers: work per byte, the speed of its line, and how far they overlap.

    ``overlap_ratio`` is the part of the bytes that is computed on while others are on the line.
    """

    work_ref_s_per_byte: Annotated[float, Meta(ge=1e-15, le=1)] = key(name="cpu_s_per_byte")
    line_bytes_s: Annotated[float, Meta(ge=1, le=BYTES_MOST)]
    overlap_ratio: Ratio = key(default=1.0, name="overlap")


class Requests(Keys, frozen=True):
    """Requests that wait in one queue for the vCPUs of a guest, in order of arrival.

    They arrive at random or evenly; their work varies around ``work_ref_s``, or is the same.
    """

    per_s: Annotated[float, Meta(ge=1e-6, le=1e4)]
    work_ref_s: Positive = key(name="work_refcore_s")
    arrivals: Annotated[str, one_of("poisson", "regular")] = "poisson"
    service: Annotated[str, one_of("exponential", "fixed")] = "exponential"


class PhaseKeys(Keys, frozen=True):
    """A phase; what it does not give is that of the workload."""

    for_s: Step
    speedup: dict[str, Rate] | None = None
    utilization: Ratio | None = None
    ipc_ratio: Rate = 1.0


class VcpuKeys(Keys, frozen=True):
    """What one vCPU does."""

    speedup: dict[str, Rate] | None = None
    ipc: dict[str, Rate] | None = None
    utilization: Ratio | None = None
    work_refcore_s: Positive | None = None
    barrier_s: Step | list[NotNegative] | None = None
    phases: Annotated[list[PhaseKeys], Meta(min_length=1)] | None = None
    phases_follow: Annotated[str, one_of("work", "clock")] | None = None
    io: Io | None = None


class WorkloadKeys(VcpuKeys, frozen=True):
    """What all vCPUs of a VM do, and what they share."""

    vcpus: list[VcpuKeys] | None = None
    requests: Requests | None = None
    barrier_wait: Annotated[str, one_of("sleep", "spin")] = "sleep"


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a workload.

    ``speeds`` by core type, slowest type first, over the speed on the slowest type;
    ``utilization_ratio`` is the share of time it wants a pCPU; ``ipc_ratio`` its instructions per
    cycle, and therefore per second, over what is usual for the workload. It lasts until
    ``work_ref_s`` of work are done, if given, else for ``for_s``.
    """

    speeds: tuple[float, ...]
    utilization_ratio: float = 1.0
    for_s: float = math.inf
    ipc_ratio: float = 1.0
    work_ref_s: float | None = None

    def by_work(self) -> "Phase":
        """The phase that ends after the work of ``for_s`` alone on the slowest type.

        If it only sleeps, it ends by the clock.
        """
        work_ref_s = self.for_s * self.utilization_ratio
        return replace(self, for_s=math.inf, work_ref_s=work_ref_s) if work_ref_s else self


@dataclass(frozen=True, slots=True)
class Workload:
    """What every vCPU of a guest does: its phases in turn, repeated.

    Work is counted in seconds alone on the slowest core type. ``work_ref_s``: work of each vCPU,
    ``None`` if endless. ``barrier_ref_s``: the vCPUs wait for each other after this much work;
    several values apply in turn, again and again. ``ipc``: instructions per cycle by core type, if
    given. ``vcpus``: what vCPU 0, 1, ... does instead; the last one applies to all vCPUs after it.
    ``io`` or ``requests`` decide when a vCPU wants a pCPU and how much it does then. ``spins``:
    whether they wait busily at barriers.
    """

    phases: tuple[Phase, ...]
    work_ref_s: float | None = None
    barrier_ref_s: float | tuple[float, ...] | None = None
    ipc: Mapping[str, float] = field(default_factory=dict)
    vcpus: "tuple[Workload, ...]" = ()
    io: Io | None = None
    requests: Requests | None = None
    spins: bool = False

    def different(self, vcpus: int) -> "tuple[Workload, ...]":
        """What the first of ``vcpus`` vCPUs do; any further ones do the same as the last."""
        return self.vcpus[:vcpus] or (self,)

    def each(self, vcpus: int) -> "list[Workload]":
        """What each of ``vcpus`` vCPUs does."""
        different = self.different(vcpus)
        return [different[min(index, len(different) - 1)] for index in range(vcpus)]

    @property
    def barriers_ref_s(self) -> tuple[float, ...]:
        """Work before each of the barriers, in turn; empty without barriers."""
        between = self.barrier_ref_s
        if between is None:
            return ()
        return between if isinstance(between, tuple) else (between,)

    @property
    def by_work(self) -> bool:
        """Whether some phases end once a vCPU has done their work."""
        return any(p.work_ref_s is not None for p in self.phases)

    @property
    def parallel(self) -> bool:
        """Whether vCPUs wait for each other."""
        return any(w.barrier_ref_s is not None for w in (self, *self.vcpus))


def usual(topology: Topology) -> Workload:
    """A workload that always runs and gains what the coefficients say."""
    return Workload((Phase(_coefficients(topology)),))


def read(keys: WorkloadKeys, at: Place, topology: Topology, vcpus: int) -> Workload:
    """The workload of a VM with ``vcpus`` vCPUs."""
    spins = keys.barrier_wait == "spin"
    whole = replace(_read(keys, at, topology), requests=keys.requests, spins=spins)
    if keys.vcpus is not None:
        own = at["vcpus"]
        if not 0 < len(keys.vcpus) <= vcpus:
            raise own.wrong(
                f"{own.path} has {len(keys.vcpus)} entries for {vcpus} vCPUs: give one to {vcpus}"
            )
        each = []
        for number, vcpu in enumerate(keys.vcpus):  # it gives only what differs
            given = {k: v for k, v in structs.asdict(vcpu).items() if v is not None}
            each.append(_read(structs.replace(keys, **given), own[number], topology))
        whole = replace(whole, vcpus=tuple(each))
    for one in whole.different(vcpus):
        _check(at, one, whole)
    return whole


def _check(at: Place, one: Workload, whole: Workload) -> None:
    """Refuse a workload in which two keys decide when a vCPU wants a pCPU or what it waits for."""
    keys = {
        "requests": whole.requests is not None,
        "io": one.io is not None,
        "work_refcore_s": one.work_ref_s is not None,
        "barrier_s": one.barrier_ref_s is not None,
        "utilization": any(p.utilization_ratio < 1.0 for p in one.phases),
    }
    names = [name for name, present in keys.items() if present]
    if len(names) > 1 and names[0] in ("requests", "io"):
        raise at.wrong(
            f"{at.path} gives {names[0]} and {names[1]}, but either of them decides when a vCPU "
            "wants a CPU: remove one"
        )


def _read(keys: VcpuKeys, at: Place, topology: Topology) -> Workload:
    speeds = _speeds(keys.speedup, at["speedup"], topology)
    utilization = 1.0 if keys.utilization is None else keys.utilization
    phases = [Phase(speeds, utilization)]
    if keys.phases is not None:
        phases = [
            Phase(
                _speeds(each.speedup, at["phases"][number]["speedup"], topology)
                if each.speedup
                else speeds,
                utilization if each.utilization is None else each.utilization,
                each.for_s,
                each.ipc_ratio,
            )
            for number, each in enumerate(keys.phases)
        ]
        if keys.phases_follow != "clock":
            phases = [phase.by_work() for phase in phases]
    _check_types(keys.ipc or {}, at["ipc"], topology)
    return Workload(
        tuple(phases),
        keys.work_refcore_s,
        _barriers(keys.barrier_s, at["barrier_s"]),
        keys.ipc or {},
        io=keys.io,
    )


def _barriers(barrier_s: float | list[float] | None, at: Place) -> float | tuple[float, ...] | None:
    """Work before a barrier, or before each of several in turn."""
    if not isinstance(barrier_s, list):
        return barrier_s
    for number, work_ref_s in enumerate(barrier_s):
        if 0.0 < work_ref_s < STEP_MIN_S:
            raise at[number].refused(f"0, or a number of at least {STEP_MIN_S:g}")
    if not any(barrier_s):
        raise at.wrong(f"{at.path} has no work: give a number above 0, or null")
    return tuple(barrier_s)


def _coefficients(topology: Topology) -> tuple[float, ...]:
    """Speeds of a workload that gains exactly what the coefficients say."""
    coefficients = [t.coefficient or 1.0 for t in topology.core_types]
    return tuple(c / coefficients[0] for c in coefficients)


def _check_types(numbers: Mapping[str, float], at: Place, topology: Topology) -> None:
    """Refuse numbers for core types that the host does not have."""
    types = [t.name for t in topology.core_types]
    for name in numbers:
        if name not in types:
            raise at[name].wrong(
                f"{at.path} names core type '{name}', which is not on this host: "
                f"it has {', '.join(types)}"
            )


def _speeds(
    speedup: Mapping[str, float] | None, at: Place, topology: Topology
) -> tuple[float, ...]:
    """Speeds on every core type over the slowest, which may be left out."""
    if not speedup:
        return _coefficients(topology)
    _check_types(speedup, at, topology)
    slowest, *others = (t.name for t in topology.core_types)
    if speedup.get(slowest, 1.0) != 1.0:
        raise at.wrong(
            f"{at.path} is {speedup[slowest]:g} on '{slowest}', but speeds are relative to that "
            "type, the slowest: give 1 or leave it out"
        )
    for name in others:
        if name not in speedup:
            raise at.wrong(f"{at.path} has no '{name}': add it")
    return (1.0, *(speedup[name] for name in others))


CYCLE_S = 0.1
"""Length of one cycle of running and sleeping."""


@dataclass(frozen=True, slots=True)
class Turn:
    """From ``at_s`` on: whether the guest wants pCPUs, and its speed on each core type."""

    at_s: float
    wants: bool
    speeds: tuple[float, ...]
    ipc_ratio: float = 1.0


def turns_of(phase: Phase, start_s: float, shift_s: float) -> Iterator[Turn]:
    """The turns of one phase, which starts at ``start_s`` and lasts for its ``for_s``.

    ``shift_s`` is where in its cycle of running and sleeping the guest starts.
    """
    utilization = phase.utilization_ratio
    if utilization in (0.0, 1.0):
        yield Turn(start_s, bool(utilization), phase.speeds, phase.ipc_ratio)
        return
    end_s = start_s + phase.for_s
    cycle = math.floor((start_s + shift_s) / CYCLE_S)
    at_s = start_s
    while at_s < end_s:
        # Multiplied rather than added up, so that the pattern does not drift in long runs.
        sleeps_s = (cycle + utilization) * CYCLE_S - shift_s
        if at_s < sleeps_s:
            yield Turn(at_s, True, phase.speeds, phase.ipc_ratio)
            at_s = sleeps_s
        if at_s < end_s:
            yield Turn(at_s, False, phase.speeds, phase.ipc_ratio)
        cycle += 1
        at_s = max(at_s, cycle * CYCLE_S - shift_s)
