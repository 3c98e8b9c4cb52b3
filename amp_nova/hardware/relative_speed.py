"""Speed on the core types of a host, relative to the slowest type."""

import math
from collections.abc import Sequence

from amp_nova.model.topology import CoreType


def gain(types: tuple[CoreType, ...], at: int) -> float | None:
    """The coefficient of the core type at ``at`` over the slowest's; ``None`` if unknown."""
    here, slowest = types[at].coefficient, types[0].coefficient
    return here / slowest if here is not None and slowest else None


def speed(types: tuple[CoreType, ...], at: int, speedup: float) -> float:
    """The speed, on the core type at ``at``, of a workload with ``speedup`` on the fastest type.

    For the types in between it is interpolated linearly by coefficient or, if coefficients are
    unknown, by position.
    """
    if at == 0:
        return 1.0
    last = len(types) - 1
    height = at / last
    if at < last:
        here, most = gain(types, at), gain(types, last)
        if here is not None and most is not None and most > 1.0:
            height = (here - 1.0) / (most - 1.0)
    return 1.0 + (speedup - 1.0) * height


def alone_shares(pcpus: Sequence[int], vcpus: float) -> tuple[float, ...]:
    """Time of each of an instance's vCPUs on each core type if it were alone on the host.

    The vCPUs take the fastest pCPUs, and take turns if there are more vCPUs than pCPUs
    (saez2015, section 2.1: "alone in the AMP, with all the big cores available").

    ``pcpus``: how many of each core type they may use, slowest type first; ``vcpus``: how many of
    them run at a time. The sum is below 1 if there are more of these than pCPUs. If no pCPU is
    online, all the time counts as spent on the slowest type.
    """
    if not any(pcpus):
        return (1.0, *(0.0 for _ in pcpus[1:]))
    shares, left = [], vcpus
    for count in reversed(pcpus):
        taken = min(float(count), left)
        shares.append(taken / vcpus)
        left -= taken
    return tuple(reversed(shares))


def speed_over(types: tuple[CoreType, ...], shares: Sequence[float], speedup: float) -> float:
    """Mean speed of a workload with ``speedup`` that has these shares of time on each core type."""
    return math.fsum([share * speed(types, at, speedup) for at, share in enumerate(shares)])


def running_at_a_time(demands: Sequence[float]) -> float:
    """How many of an instance's vCPUs run at a time, from each one's demand in the same time.

    vCPUs with equal demand count fully; one that hardly ever wants to run counts little.
    """
    most = max(demands, default=0.0)
    return math.fsum(demands) / most if most > 0.0 else 1.0
