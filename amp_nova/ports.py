"""The outside world as the control loop sees it. Implemented by real hosts and by the simulator."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from amp_nova.model.allocation import Change, Failure
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Observation, Sample, VcpuKey
from amp_nova.model.topology import Topology
from amp_nova.profiling.io_overlap import IoReading


class Sensor(Protocol):
    """Where readings come from."""

    def observe(self) -> Observation:
        """Read the host; ``HypervisorUnavailable`` if nothing can be known in this cycle."""
        ...


class FastPort(Protocol):
    """The short way to vCPUs that book Ips: kept descriptors, a few microseconds a call."""

    def sample(self, keys: Collection[VcpuKey]) -> Mapping[VcpuKey, Sample]:
        """Counters of these vCPUs now; one that went, or cannot be counted, is left out."""
        ...

    def throttle(self, limits: Mapping[VcpuKey, Bandwidth]) -> Mapping[VcpuKey, Failure]:
        """Write limits at once, without waiting for a period to begin; and say what failed."""
        ...


class Actuator(Protocol):
    """What carries changes out."""

    def apply(self, changes: Sequence[Change]) -> Mapping[VcpuKey, Failure]:
        """Carry changes out, each on its own, and say what failed; a vCPU that went is none."""
        ...

    def precede(self, yielding: Mapping[str, bool]) -> Mapping[str, Failure]:
        """Make instances, by UUID, yield to all others or no longer; and say what failed."""
        ...


class IoPort(Protocol):
    """The threads that do the domains' I/O, and what their interfaces carry."""

    def read(self, topology: Topology) -> Sequence[IoReading]:
        """Every domain's; ``HypervisorUnavailable`` if nothing can be known."""
        ...

    def move(self, resource: str, wanted: Mapping[int, frozenset[int]]) -> Failure | None:
        """Keep threads, by id, on these pCPUs; those that went are no failure."""
        ...
