"""What an agent admits to its host, and what it publishes of itself besides what a cycle found."""

from dataclasses import dataclass

from amp_nova.model.topology import Topology


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What a host report says besides what a cycle found; ``bookable=None`` means all pCPUs.

    ``smt``: how bookings share the hardware threads of a core.
    """

    node: str
    bookable: frozenset[int] | None = None
    reserve_ratio: float = 0.0
    policy: str = "none"
    counters: str | None = None
    smt: str = "shared"

    def bookable_of(self, topology: Topology) -> frozenset[int]:
        """The online pCPUs that new instances may use."""
        online = frozenset(p.id for p in topology.pcpus)
        return online if self.bookable is None else online & self.bookable
