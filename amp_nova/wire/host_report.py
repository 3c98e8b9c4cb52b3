"""The host report: what an agent tells the schedulers about its host."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from amp_nova.model.topology import Topology


@dataclass(frozen=True, slots=True)
class Speedup:
    """A workload's measured speed on the fastest core type over its speed on the slowest.

    ``error`` is the standard error, ``None`` if unknown.
    """

    ratio: float
    error: float | None = None


@dataclass(frozen=True, slots=True)
class ReportedVcpu:
    """One vCPU: what it books (``refcores`` or ``ips``, neither for best effort) and where it is.

    ``pcpu``: where it is packed; a booked vCPU without one found no free capacity. ``core_type``:
    the type it is kept on.
    """

    index: int
    refcores: float | None = None
    ips: float | None = None
    allowed: frozenset[int] = frozenset()
    core_type: str | None = None
    pcpu: int | None = None
    utilization_ratio: float | None = None
    speedup: Speedup | None = None

    @property
    def booked(self) -> bool:
        """Whether it books capacity."""
        return self.refcores is not None or self.ips is not None


@dataclass(frozen=True, slots=True)
class ReportedInstance:
    """One instance. ``core_type``: the type its flavor requires; ``hint``: its ``amp:efficiency``.

    ``flavor`` and ``image`` are Nova's ids, empty if the domain does not name them.
    """

    resource: str
    vcpus: tuple[ReportedVcpu, ...]
    core_type: str | None = None
    weight: float = 1.0
    hint: float | str | None = None
    flavor: str = ""
    image: str = ""

    @property
    def booked(self) -> bool:
        """Whether any vCPU books capacity."""
        return any(v.booked for v in self.vcpus)


@dataclass(frozen=True, slots=True)
class Origin:
    """Which agent made a report, and when.

    ``node``: Nova's ``hypervisor_hostname``. ``boot_id`` changes when the agent restarts, and
    ``sequence`` counts its reports from then on. ``time_s``: wall time.
    """

    node: str
    boot_id: str
    sequence: int
    time_s: float


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host as its agent sees it.

    ``bookable``: pCPUs that new instances may use. ``counters``: the source of instruction counts,
    ``None`` without one. ``problems``: bookings that the agent cannot keep, and why.
    """

    origin: Origin
    topology: Topology
    bookable: frozenset[int]
    reserve_ratio: float = 0.0
    instances: tuple[ReportedInstance, ...] = ()
    policy: str = "none"
    counters: str | None = None
    healthy: bool = True
    problems: tuple[str, ...] = ()
    by_uuid: Mapping[str, ReportedInstance] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_uuid", {i.resource: i for i in self.instances})

    def same_state(self, other: "HostReport") -> bool:
        """Whether two reports differ in their origin only."""
        return replace(other, origin=self.origin) == self
