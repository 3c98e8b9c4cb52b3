"""What a best-effort policy is given and gives back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from amp_nova.exceptions import InvalidPlan
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import Topology


class Confined(Protocol):
    """A vCPU that may use some pCPUs only."""

    @property
    def allowed(self) -> frozenset[int]:
        """The pCPUs it may use."""
        ...


def check(
    places: Mapping[VcpuKey, frozenset[int]], view: Mapping[VcpuKey, Confined], topology: Topology
) -> None:
    """Raise ``InvalidPlan`` if places name vCPUs or pCPUs that are not there, or no pCPU at all."""
    for key, pcpus in places.items():
        if (vcpu := view.get(key)) is None:
            raise InvalidPlan(f"vCPU {key} is not there to be placed")
        if not pcpus:
            raise InvalidPlan(f"vCPU {key} is left no pCPU to run on")
        if extra := pcpus - vcpu.allowed:
            raise InvalidPlan(f"vCPU {key} may not use pCPU {min(extra)}")
        if any(topology.type_of(p) is None for p in pcpus):
            raise InvalidPlan(f"vCPU {key} is sent to a pCPU that is offline")


@dataclass(frozen=True, slots=True)
class VcpuView:
    """One best-effort vCPU: where it is kept now, where it may be, and what it did.

    ``utilization_ratio``: share of the last interval it ran; ``demand_ratio``: share it wanted to
    run; ``None`` before the first interval.
    """

    key: VcpuKey
    pcpus: frozenset[int]
    allowed: frozenset[int]
    weight: float = 1.0
    utilization_ratio: float | None = None
    demand_ratio: float | None = None
    last_pcpu: int | None = None
    """The pCPU it last ran on, where that is known."""
    ipc: float | None = None
    """Instructions per cycle while it ran, smoothed (kwon2011); ``None``: not counted.

    Where no cycles are counted, instructions per nanosecond of a reference core: to rank by."""
    speedup: float | None = None
    """Its own Ips on the fastest core type over the slowest, as estimated; ``None``: not known."""
    sampled: bool = False
    """Whether the speedup was measured on both core types, not estimated by a model."""
    hint: float | None = None
    """The speedup that its flavor says it has (``amp:efficiency``), for want of a measured one."""
    asleep: bool = False
    """Whether it wanted no pCPU in the last second or so, whatever it wanted before."""
    cpu_s: tuple[float, ...] = ()
    """CPU seconds since the last interval by core type, in the topology's order."""


@dataclass(frozen=True, slots=True)
class HostView:
    """A host as a policy sees it.

    ``free_cores``: what bookings leave of every pCPU: all but what they book or, where best effort
    yields to them, all but what they use of that now.

    ``interval`` counts the policy's decisions since the agent began; ``seed`` makes chance
    repeatable. ``memory`` is what the policy's last decision asked to remember, ``None`` at first.
    """

    topology: Topology
    vcpus: tuple[VcpuView, ...]
    free_cores: Mapping[int, float]
    interval: int = 0
    seed: int = 0
    memory: object = None
    elapsed_s: float = 0.0
    """Time since the last decision; 0 at the first."""
    interval_s: float = 2.5
    """Time to the next decision."""
    moves_max: int | None = None
    """How many vCPUs that have a place may be moved to another core type; ``None``: all."""
    booked: frozenset[int] = frozenset()
    """pCPUs with bookings, whether those are in use or not."""

    @property
    def asymmetric(self) -> bool:
        """Whether there is anything to decide: pCPUs of more than one core type."""
        return sum(bool(self.topology.pcpus_of(t.name)) for t in self.topology.core_types) > 1


Places = Mapping[VcpuKey, frozenset[int]]
"""The pCPUs each vCPU shall be kept on; one that is left out is left alone."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Places, and what to be shown again at the next decision. ``memory`` is never changed."""

    places: Places
    memory: object = None
    early: bool = False
    """Whether to be asked again before the interval is over, when a vCPU that it put on a fast core
    sleeps while another one is busy on a slower one, or when one without a place waits."""


class Policy(Protocol):
    """A best-effort policy: one pure decision an interval.

    It keeps nothing itself: what it wants to remember it returns, and sees it again in the next
    view. So a plan that was refused leaves no trace, and a test is a view.
    """

    @property
    def name(self) -> str:
        """Its name in configuration and reports."""
        ...

    def decide(self, view: HostView) -> Decision | Places:
        """Where every vCPU shall be kept; a policy without memory returns the places alone."""
        ...
