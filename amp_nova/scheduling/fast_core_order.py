"""Best-effort instances in the order in which a policy gives them fast cores, with sums along it.

The sums give the throughput of a host without going through every instance.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple


class Group(NamedTuple):
    """The best-effort vCPUs of an instance."""

    sensitivity: float
    vcpus: int
    reach: float = 1.0
    """What a workload of sensitivity 1 would gain from the fast cores if the instance were alone on
    the host, in reference cores per vCPU; 1 if every vCPU counts by itself."""

    @property
    def rank(self) -> float:
        """The gain by which policies order instances."""
        return self.sensitivity * self.reach

    @property
    def speed_alone(self) -> float:
        """The speed per vCPU, alone on the host, by which policies share among instances.

        Not 0, even on cores that are far slower than the reference core.
        """
        return max(0.01, 1.0 + self.rank)


@dataclass(frozen=True, slots=True)
class FastCoreOrder:
    """Groups by rank, highest first.

    ``falling_ranks``: the rank of each group, negated. ``counts`` and ``sums``: how many vCPUs
    precede each group, and the sum of their sensitivities; the last element of each is the total.
    """

    groups: Sequence[Group]
    falling_ranks: Sequence[float]
    counts: Sequence[int]
    sums: Sequence[float]

    def sum_of(self, vcpus: float) -> float:
        """The sum of the sensitivities of the first ``vcpus``, which may be a fractional number."""
        if vcpus >= self.counts[-1]:
            return self.sums[-1]
        at = bisect_right(self.counts, vcpus) - 1
        return self.sums[at] + (vcpus - self.counts[at]) * self.groups[at].sensitivity

    def preceding(self, group: Group) -> int:
        """How many vCPUs precede a new group, which comes before groups of equal rank."""
        return self.counts[bisect_left(self.falling_ranks, -group.rank)]

    def evenly(self) -> "FastCoreOrder":
        """All vCPUs as one group, which shares each core type evenly."""
        vcpus = self.counts[-1]
        return in_order([Group(self.sums[-1] / vcpus, vcpus)] if vcpus else [])


def in_order(groups: Iterable[Group]) -> FastCoreOrder:
    """The groups in order of rank."""
    found = tuple(sorted(groups, key=_falling_rank))
    return FastCoreOrder(
        found,
        tuple(map(_falling_rank, found)),
        tuple(accumulate((g.vcpus for g in found), initial=0)),
        tuple(accumulate((g.vcpus * g.sensitivity for g in found), initial=0.0)),
    )


def _falling_rank(group: Group) -> float:
    return -group.rank
