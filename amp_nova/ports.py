"""The outside world as the control loop sees it. Implemented by real hosts and by the simulator."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from amp_nova.model.allocation import Changes, Failure, Outcome
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Observation, Sample, VcpuKey
from amp_nova.model.topology import Topology
from amp_nova.profiling.io_overlap import IoReading


class Sensor(Protocol):
    """Reads the host. It reports what the kernel says, never what was meant to be in force."""

    def observe(self) -> Observation:
        """Everything once; ``HypervisorUnavailable`` if nothing can be known in this cycle."""
        ...

    def sample(self, keys: Collection[VcpuKey]) -> Mapping[VcpuKey, Sample]:
        """Counters of these vCPUs now; a vCPU that is gone, or not counted, is left out."""
        ...


class Actuator(Protocol):
    """The only writer of limits, affinities and idle flags."""

    def apply(self, changes: Changes) -> Outcome:
        """Make changes, each on its own; a vCPU that is gone is not a failure."""
        ...

    def throttle(self, limits: Mapping[VcpuKey, Bandwidth]) -> Mapping[VcpuKey, Failure]:
        """Write limits at once, without waiting for a bandwidth period to begin."""
        ...


class IoPort(Protocol):
    """The threads that do the domains' I/O, and what their interfaces carry."""

    def read(self, topology: Topology) -> Sequence[IoReading]:
        """Every domain's; ``HypervisorUnavailable`` if nothing can be known."""
        ...

    def move(self, resource: str, wanted: Mapping[int, frozenset[int]]) -> Failure | None:
        """Keep threads, by id, on these pCPUs; a thread that is gone is not a failure."""
        ...
