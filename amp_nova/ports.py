"""The outside world as the control loop sees it. Implemented by real hosts and by the simulator."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from amp_nova.core.observation import Observation, VcpuKey
from amp_nova.core.plan import Change, Failure


class Sensor(Protocol):
    """Where readings come from."""

    def observe(self) -> Observation:
        """Read the host; ``HypervisorUnavailable`` if nothing can be known in this cycle."""
        ...


class Actuator(Protocol):
    """What carries changes out."""

    def apply(self, changes: Sequence[Change]) -> Mapping[VcpuKey, Failure]:
        """Carry changes out, each on its own, and say what failed; a vCPU that went is none."""
        ...

    def precede(self, yielding: Mapping[str, bool]) -> Mapping[str, Failure]:
        """Make instances, by UUID, yield to all others or no longer; and say what failed."""
        ...
