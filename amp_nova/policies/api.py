# SPDX-License-Identifier: Apache-2.0
"""The interface of a best-effort policy.

A policy decides which pCPUs each best-effort vCPU is kept on. Once per interval the agent builds a
``HostView`` and calls ``Policy.decide``, which returns places: a mapping from vCPU to pCPUs. The
agent checks the places, applies them, and calls again after the next interval.

A policy is a pure function of its view. It performs no I/O, reads no clock and keeps no state: it
returns what it wants to remember in ``Decision.memory``, and finds it in the next
``HostView.memory``. To add a policy, register its class as an entry point of the group
``amp_nova.policies``. If the class is a dataclass, its fields are the policy's parameters;
``__post_init__`` raises ``ValueError`` for a value that is not allowed.

An unknown value is ``None``. A policy must cope with it: many hosts cannot count instructions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from amp_nova.exceptions import InvalidPlan
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import Topology


class VcpuView(Struct, frozen=True):
    """One best-effort vCPU: where it may run, where it is, and what it did in the last interval."""

    key: VcpuKey
    """The instance's UUID and the index of the vCPU, unique on the host."""
    pcpus: frozenset[int]
    """The pCPUs it is kept on now (its affinity)."""
    allowed: frozenset[int]
    """The pCPUs it may be kept on; a place is a non-empty subset of those that are online."""
    weight: float = 1.0
    """``amp:weight`` of its flavor: its priority among best-effort vCPUs, 0.01 to 100."""
    utilization_ratio: float | None = None
    """Share of the last interval in which it ran, 0 to 1; ``None`` in its first interval."""
    demand_ratio: float | None = None
    """Share of the last interval in which it wanted to run, that is ran or waited for a pCPU, 0 to
    1; ``None`` in its first interval."""
    last_pcpu: int | None = None
    """The pCPU it last ran on."""
    ipc: float | None = None
    """Instructions per cycle while it ran, smoothed (kwon2011 section 3.2).

    If cycles are not counted: instructions per nanosecond divided by the core type's coefficient,
    which ranks vCPUs in a similar way. ``None``: instructions are not counted."""
    speedup: float | None = None
    """Estimate of its speed on the fastest core type over that on the slowest."""
    sampled: bool = False
    """Whether ``speedup`` was measured on both core types; otherwise a model estimated it."""
    speeds: tuple[float | None, ...] = ()
    """Measured speed on each core type over the slowest, in the order of ``Topology.core_types``;
    ``None``: it has not run on both."""
    hint: float | None = None
    """The speedup that its flavor states (``amp:efficiency``); prefer ``speedup`` if known."""
    asleep: bool = False
    """Whether it has had no demand for about a second, whatever ``demand_ratio`` says."""
    cpu_s: tuple[float, ...] = ()
    """CPU seconds in the last interval on each core type, in the order of ``Topology.core_types``;
    empty: unknown."""
    parallel: bool | None = None
    """Whether the vCPUs of its instance run one program, whose threads wait for each other: a
    faster core type is of use only to all of them together. The flavor says so (``amp:parallel``),
    or it was recognised; ``None``: it was not."""


@dataclass(frozen=True, slots=True)
class HostView:
    """A host at the time of a decision."""

    topology: Topology
    """``core_types``, slowest first, each with ``name`` and ``coefficient``; the online pCPUs of a
    type, ``pcpus_of(name)``; and the type of a pCPU, ``type_of(pcpu)``, ``None`` if offline."""
    vcpus: tuple[VcpuView, ...]
    """The best-effort vCPUs to place. Booked vCPUs do not appear."""
    free_cores: Mapping[int, float]
    """What bookings leave of each online pCPU, in cores, at most 1. Overbooking can make it
    negative. Only the part of a booking that is in use
    counts."""
    interval: int = 0
    """Number of the decision, from 0 at the start of the agent."""
    seed: int = 0
    """Seed for random choices; combine it with ``interval``, so that a run can be repeated."""
    memory: object = None
    """``Decision.memory`` of the last decision; ``None`` at the first."""
    elapsed_s: float = 0.0
    """Seconds since the last decision; 0 at the first."""
    interval_s: float = 2.5
    """Seconds to the next decision, unless it is an early one."""
    booked: frozenset[int] = frozenset()
    """pCPUs with bookings, whether these are in use or not."""

    @property
    def asymmetric(self) -> bool:
        """Whether pCPUs of several core types are online; if not, there is nothing to decide."""
        return self.topology.asymmetric


Places = Mapping[VcpuKey, frozenset[int]]
"""The pCPUs to keep each vCPU on. A vCPU that is left out keeps its affinity."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy returns: places, and what it wants to remember."""

    places: Places
    memory: object = None
    """Passed to the next decision as ``HostView.memory``, unchanged. If the places are refused, it
    is discarded and the next decision gets the previous memory again."""
    early: bool = False
    """Whether to decide again before the interval ends if a vCPU that was placed on a fast core
    falls asleep while another is busy on a slower one, or if a vCPU without a place waits."""


class Policy(Protocol):
    """A best-effort policy."""

    @property
    def name(self) -> str:
        """Its name in the configuration, logs and reports; the name of its entry point."""
        ...

    def decide(self, view: HostView) -> Decision | Places:
        """The places of vCPUs for the next interval; plain places if there is nothing to remember.

        If it raises, or ``check`` refuses the places, the failure is logged and nothing changes.
        After five failures in a row the agent falls back to ``none``.
        """
        ...


def check(places: Places, allowed: Mapping[VcpuKey, frozenset[int]], topology: Topology) -> None:
    """Check a policy's places before they are applied.

    ``allowed``: the pCPUs that each best-effort vCPU may use. Raises ``InvalidPlan`` if a vCPU is
    unknown, or if its pCPUs are empty, not allowed or offline.
    """
    used = frozenset().union(*frozenset(places.values()))
    offline = {p for p in used if topology.type_of(p) is None}
    for key, pcpus in places.items():
        if key not in allowed:
            raise InvalidPlan(f"vCPU {key} is not a best-effort vCPU of this host")
        if not pcpus:
            raise InvalidPlan(f"vCPU {key} is left with no pCPU to run on")
        if extra := pcpus - allowed[key]:
            raise InvalidPlan(f"vCPU {key} may not use pCPU {min(extra)}")
        if not offline.isdisjoint(pcpus):
            raise InvalidPlan(f"vCPU {key} is placed on a pCPU that is offline")


def at_least(name: str, value: float, minimum: float) -> None:
    """Raise ``ValueError`` unless the value is a finite number of at least ``minimum``."""
    if not (math.isfinite(value) and value >= minimum):
        raise ValueError(f"{name}={value:g} is not allowed: give a number of at least {minimum:g}")
