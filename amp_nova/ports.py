# SPDX-License-Identifier: Apache-2.0
"""The control loop's interfaces to the host; both a real host and the simulator implement them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from amp_nova.model.allocation import Changes, Failure, Outcome
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Observation, VcpuKey, VcpuSample
from amp_nova.model.topology import Topology
from amp_nova.profiling.io_overlap import IoReading


class Sensor(Protocol):
    """Reads the host. It reports what the kernel says, never what the agent meant to set."""

    def observe(self) -> Observation:
        """Read everything once; raises ``HypervisorUnavailable`` if nothing can be read."""
        ...

    def sample(self, keys: Collection[VcpuKey]) -> Mapping[VcpuKey, VcpuSample]:
        """Read the counters of these vCPUs now, except of any that is gone or not counted."""
        ...


class Actuator(Protocol):
    """The loop's only way to limits, affinities and CPU weights."""

    def apply(self, changes: Changes) -> Outcome:
        """Apply changes independently of each other; a vCPU that is gone is not a failure."""
        ...

    def throttle(self, limits: Mapping[VcpuKey, Bandwidth | None]) -> Mapping[VcpuKey, Failure]:
        """Write limits at once, without waiting for a bandwidth period to begin."""
        ...


class IoPort(Protocol):
    """The threads that do the domains' I/O, and the traffic of their network interfaces."""

    def read(self, topology: Topology) -> Sequence[IoReading]:
        """Read every domain's; raises ``HypervisorUnavailable`` if nothing can be read."""
        ...

    def move(self, resource: str, affinities: Mapping[int, frozenset[int]]) -> str | None:
        """Set the affinity of threads, by id; returns what failed, unless a thread is gone."""
        ...
