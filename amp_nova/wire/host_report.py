# SPDX-License-Identifier: Apache-2.0
"""The host report: what an agent tells the schedulers about its host.

The types and bounds are also the format on the wire, checked as msgspec decodes (see ``encoding``).
Instances and vCPUs are arrays there, because a report has many; new fields are appended. Nothing
in them refers back, so the garbage collector need not visit them (``gc=False``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated
from weakref import WeakValueDictionary

from msgspec import Meta, Struct

from amp_nova.model import cpulist
from amp_nova.model.topology import Topology

NAME_MAX = 255
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Text = Annotated[str, Meta(max_length=NAME_MAX)]
PCPU_ID_MAX = (1 << 13) - 1
"""Linux supports 8,192 CPUs."""
PCPUS_MAX = VCPUS_MAX = 1 << 11
INSTANCES_MAX = 1 << 10
"""Most pCPUs, vCPUs and instances of a host. ``encoding`` bounds what they take together."""
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
"""Every JSON reader represents integers below 2^53."""
Index = Annotated[int, Meta(ge=0, le=PCPU_ID_MAX)]
Number = Annotated[float, Meta(ge=0, le=1e18)]
Positive = Annotated[float, Meta(ge=1e-6, le=1e18)]
"""Not so small that a quotient overflows."""


_shared: WeakValueDictionary[str, frozenset[int]] = WeakValueDictionary()
"""The sets of CPU lists: all reports share the few that occur, and no set outlives them."""


def pcpus_of(text: str) -> frozenset[int]:
    """The ids in a CPU list; ``ValueError`` if it is malformed."""
    if (ids := _shared.get(text)) is None:
        ids = frozenset(cpulist.parse(text))
        if ids and max(ids) > PCPU_ID_MAX:
            raise ValueError(f"pCPU {max(ids)} is out of range")
        _shared[text] = ids
    return ids


class Speedup(Struct, frozen=True, array_like=True, gc=False):
    """A workload's measured speed on the fastest core type over its speed on the slowest.

    ``error`` is the standard error, ``None`` if unknown.
    """

    ratio: Positive
    error: Number | None = None


class ReportedVcpu(Struct, frozen=True, array_like=True, gc=False):
    """One vCPU: what it books (``refcores`` or ``ips``, neither for best effort) and where it is.

    ``pcpu``: where it is packed; a booked vCPU without one found no free capacity. ``core_type``:
    the type it is kept on.
    """

    index: Index
    refcores: Positive | None = None
    ips: Positive | None = None
    cpus_allowed_list: str = ""
    core_type: Text | None = None
    pcpu: Index | None = None
    utilization_ratio: Number | None = None
    speedup: Speedup | None = None

    @property
    def booked(self) -> bool:
        """Whether it books capacity."""
        return self.refcores is not None or self.ips is not None


class ReportedInstance(Struct, frozen=True, array_like=True, gc=False):
    """One instance. ``core_type``: the type its flavor requires; ``hint``: its ``amp:efficiency``.

    ``flavor`` and ``image`` are Nova's ids, empty if the domain does not name them. On the wire
    they are given once for a group of instances, because many share them.
    """

    resource: Name
    vcpus: Annotated[tuple[ReportedVcpu, ...], Meta(max_length=VCPUS_MAX)] = ()
    core_type: Text | None = None
    weight: Positive = 1.0
    hint: Number | Text | None = None
    flavor: Text = ""
    image: Text = ""

    @property
    def booked(self) -> bool:
        """Whether any vCPU books capacity."""
        return any(v.booked for v in self.vcpus)


class Origin(Struct, frozen=True, gc=False):
    """Which agent made a report, and when.

    ``node``: Nova's ``hypervisor_hostname``. ``boot_id`` changes when the agent restarts, and
    ``sequence`` counts its reports from then on. ``time_s``: wall time, for people to read.
    """

    node: Name
    boot_id: Name
    sequence: Count
    time_s: Number

    def __post_init__(self) -> None:
        if not (self.node.isprintable() and self.boot_id.isprintable()):
            raise ValueError("node or boot_id contains a control character")


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host as its agent sees it. ``bookable``: pCPUs that new instances may use."""

    origin: Origin
    topology: Topology
    bookable: frozenset[int]
    reserve_ratio: float = 0.0
    instances: tuple[ReportedInstance, ...] = ()
    healthy: bool = True
    by_uuid: Mapping[str, ReportedInstance] = field(init=False, repr=False, compare=False)
    cpu_lists: tuple[frozenset[int], ...] = field(init=False, repr=False, compare=False)
    """The pCPUs in each distinct ``cpus_allowed_list``, which ``pcpus_of`` shares as long as a
    report has them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_uuid", {i.resource: i for i in self.instances})
        lists = {v.cpus_allowed_list for i in self.instances for v in i.vcpus}
        object.__setattr__(self, "cpu_lists", tuple(map(pcpus_of, lists)))

    def same_state(self, other: "HostReport") -> bool:
        """Whether two reports differ in their origin only."""
        return replace(other, origin=self.origin) == self
