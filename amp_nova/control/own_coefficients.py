"""Packing by each vCPU's own coefficients, as far as there is room.

A vCPU whose own work gains less from a core type than the hardware's coefficient says needs more of
such a core for the same speed. Whether a host takes a booking is decided by the hardware's
coefficients, so that more may not be there: then everybody has what admission counted with, and
what is free beyond it is shared out.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from amp_nova.admission import packing as packing_
from amp_nova.admission.packing import Demand, Packing
from amp_nova.exceptions import ConfigInvalid
from amp_nova.model.observation import Domain
from amp_nova.model.topology import CoreType, Topology

PARTS = (1.0, 0.75, 0.5, 0.25)
"""Which parts of what they need beyond their booked share are tried when not all of it fits."""
WORDS = {"fixed": False, "adaptive": True}
NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Choice:
    """Whose coefficients are their own: by default, or as a pattern on the libvirt name says.

    ``exceptions``: shell pattern and whether adaptive; the first that matches counts, more than
    what a flavor says.
    """

    adaptive: bool = False
    exceptions: tuple[tuple[str, bool], ...] = ()

    def adaptive_for(self, domain: Domain, by_flavor: bool | None = None) -> bool:
        """Whether a domain's vCPUs go by their own coefficients; ``by_flavor``: if that says so."""
        for pattern, adaptive in self.exceptions:
            if fnmatchcase(domain.name, pattern) or domain.resource == pattern:
                return adaptive
        return self.adaptive if by_flavor is None else by_flavor


def choice(default: str, lines: Iterable[str]) -> Choice:
    """Whose coefficients are their own, as configured: ``fixed`` or ``adaptive``, and exceptions.

    Raises:
        ConfigInvalid: a line is not a pattern and one of the two words.
    """
    exceptions = []
    for line in lines:
        words = line.split()
        if len(words) != len(("pattern", "word")) or words[1] not in WORDS:
            raise ConfigInvalid(
                f"[agent] coefficients_of = {line} is not valid: write PATTERN "
                f"{' or PATTERN '.join(WORDS)}"
            )
        exceptions.append((words[0], WORDS[words[1]]))
    return Choice(WORDS[default], tuple(exceptions))


def bounded(own: Mapping[str, float], refcores: float, topology: Topology) -> dict[str, float]:
    """Own coefficients with which a booking never needs more than one whole core.

    A booking above what the core's speed-up for this work is gets the whole core: nothing more can
    be had there, and the hardware is worth the booking.
    """
    found = {}
    for core_type in topology.core_types:
        coefficient = own.get(core_type.name)
        if coefficient is not None and core_type.coefficient is not None:
            least = min(refcores, core_type.coefficient)
            found[core_type.name] = max(coefficient, least)
    return found


def pack(
    demands: Collection[Demand], topology: Topology, reserve_ratio: float
) -> tuple[Packing, Mapping[Hashable, Mapping[str, float]]]:
    """Where vCPUs go, and the coefficients that hold for those that have some of their own."""
    own: dict[Hashable, Mapping[str, float]] = {
        d.key: d.coefficients for d in demands if d.coefficients
    }
    packing = packing_.pack(demands, topology, reserve_ratio)
    if packing.complete or not own:
        return packing, own
    packing = packing_.pack(
        [replace(d, coefficients=NONE) for d in demands], topology, reserve_ratio
    )
    there = {k: t for k, p in packing.placed.items() if (t := topology.type_of(p)) is not None}
    for part in PARTS:
        eased = {
            d.key: _eased(d, there[d.key], part) for d in demands if d.key in there and d.key in own
        }
        tried = packing_.pack(
            [
                replace(
                    d,
                    core_type=there[d.key].name,
                    current=there[d.key].name,
                    coefficients=eased.get(d.key, NONE),
                )
                for d in demands
                if d.key in there
            ],
            topology,
            reserve_ratio,
        )
        if tried.complete:
            return replace(tried, unplaced=packing.unplaced), eased
    return packing, {}


def _eased(demand: Demand, core_type: CoreType, part: float) -> Mapping[str, float]:
    """The coefficient with which a vCPU gets a part of what it needs beyond its booked share."""
    least = packing_.cores(demand.refcores, core_type)
    whole = packing_.need_cores(demand, core_type)
    if least is None or whole is None:
        return NONE
    return {core_type.name: demand.refcores / (least + part * (whole - least))}
