"""What a best-effort policy is given and gives back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from amp_nova.core.observation import VcpuKey
from amp_nova.core.topology import Topology


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
    """Instructions per cycle while it ran, smoothed (kwon2011); ``None``: not counted."""
    speedup: float | None = None
    """Its own Ips on the fastest core type over the slowest, as estimated; ``None``: not known."""
    cpu_s: tuple[float, ...] = ()
    """CPU seconds since the last interval by core type, in the topology's order."""


@dataclass(frozen=True, slots=True)
class HostView:
    """A host as a policy sees it. ``free_cores``: what bookings leave of every pCPU.

    ``interval`` counts the policy's decisions since the agent began; ``seed`` makes chance
    repeatable.
    """

    topology: Topology
    vcpus: tuple[VcpuView, ...]
    free_cores: Mapping[int, float]
    interval: int = 0
    seed: int = 0


class Policy(Protocol):
    """A best-effort policy: one pure decision an interval."""

    @property
    def name(self) -> str:
        """Its name in configuration and reports."""
        ...

    def decide(self, view: HostView) -> Mapping[VcpuKey, frozenset[int]]:
        """The pCPUs each vCPU shall be kept on; one that is left out is left alone."""
        ...
