# SPDX-License-Identifier: Apache-2.0
"""What is free on each pCPU during bin packing, with SMT taken into account.

On a core type where a busy sibling costs speed, packing assumes the worst case: a thread is worth
``coefficient x smt_busy_factor``, whatever runs beside it. A thread on which more is booked gets a
whole core: it is worth the full coefficient, and its siblings are kept free of bookings and of best
effort. That depends on the sum of its bookings alone, so vCPUs that fit together fit in any order,
and still fit if some of them leave.

The operator's reserve stays free on every pCPU. A vCPU that needs more than the rest, up to the
whole pCPU, takes the rest and gets the pCPU without other bookings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from amp_nova.hardware.effective_speed import slowing_siblings
from amp_nova.model.bandwidth import TOLERANCE
from amp_nova.model.topology import Topology

_NONE: Mapping[int, tuple[int, ...]] = MappingProxyType({})


class Option(NamedTuple):
    """pCPUs of one core type that a vCPU may use, and the share of one of them that it needs.

    ``alone``: the share while siblings are idle; ``shared``: the share while they are busy.
    """

    alone: float
    shared: float
    pcpus: frozenset[int]


@dataclass(slots=True)
class FreeCores:
    """The free share of each pCPU. ``usable``: the share of a pCPU without bookings."""

    cores: dict[int, float]
    usable: float
    whole: set[int] = field(default_factory=set)
    """pCPUs that have their core to themselves."""
    siblings: Mapping[int, tuple[int, ...]] = field(default_factory=lambda: _NONE)
    """The siblings of each pCPU that busy siblings slow down."""

    def copy(self) -> "FreeCores":
        return FreeCores(dict(self.cores), self.usable, set(self.whole), self.siblings)

    def share(self, option: Option, pcpu: int) -> float:
        """The share of a pCPU that a vCPU takes in the present state."""
        return option.shared if pcpu in self.siblings and pcpu not in self.whole else option.alone

    def bookable(self, share: float) -> float:
        """What a share of a pCPU takes of what may be booked."""
        return min(share, self.usable)

    def unbooked(self, pcpus: Iterable[int]) -> bool:
        """Whether nothing is booked on any of these pCPUs."""
        return all(self.cores[p] >= self.usable - TOLERANCE for p in pcpus)

    def opens(self, option: Option, pcpu: int) -> bool:
        """Whether a vCPU makes a core a whole one: beside a busy sibling, too little is free."""
        slowed = pcpu in self.siblings and pcpu not in self.whole
        return slowed and self.cores[pcpu] < option.shared - TOLERANCE

    def fits(self, option: Option, pcpu: int) -> bool:
        """Whether a vCPU fits on a pCPU."""
        free = self.cores[pcpu]
        if pcpu in self.siblings and pcpu not in self.whole:
            if free >= option.shared - TOLERANCE:
                return True
            if not self.unbooked(self.siblings[pcpu]):
                return False
            free = self._free_alone(option, pcpu)
        return free >= self.bookable(option.alone) - TOLERANCE

    def take(self, option: Option, pcpu: int) -> None:
        """Put a vCPU on a pCPU."""
        if self.opens(option, pcpu):
            self.cores[pcpu] = self._free_alone(option, pcpu)
            self.whole.add(pcpu)
            for sibling in self.siblings[pcpu]:
                self.cores[sibling] = 0.0
        self.cores[pcpu] -= self.bookable(self.share(option, pcpu))

    def _free_alone(self, option: Option, pcpu: int) -> float:
        """What is free on a pCPU once its siblings are idle: what is there takes less of it."""
        return self.usable - (self.usable - self.cores[pcpu]) * option.alone / option.shared

    def alike(self, kinds: Mapping[int, tuple[bool, ...]]) -> dict[int, tuple[object, ...]]:
        """A value for each pCPU, equal if they can take the same vCPUs; ``kinds``: if they may."""
        left = {p: (kinds[p], round(cores, 9)) for p, cores in self.cores.items()}
        return {
            p: (here, p in self.whole, *sorted(left[s] for s in self.siblings.get(p, ())))
            if self.siblings
            else here
            for p, here in left.items()
        }


def empty(topology: Topology, reserve_ratio: float) -> FreeCores:
    """A host without bookings."""
    usable = 1.0 - reserve_ratio
    cores = {p.id: usable for p in topology.pcpus}
    return FreeCores(cores, usable, siblings=slowing_siblings(topology))
