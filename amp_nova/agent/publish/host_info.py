"""What may be booked on a host, and what else an agent publishes besides the record of a cycle."""

from dataclasses import dataclass

from amp_nova.model.topology import Topology


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What a host report contains besides the record of a cycle.

    ``node``: the host's hypervisor_hostname; ``bookable``: the pCPUs that new instances may use,
    ``None`` for all; ``counters``: what counts instructions, ``None`` if nothing does; ``smt``: how
    bookings share the hardware threads of a core.
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
