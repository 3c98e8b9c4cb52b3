"""Slowdown and unfairness (saez2015, section 2): what sharing a host costs its best effort.

``Slowdown`` of an instance: the speed that it would have alone on this host, for the time it wanted
to run, over the speed it got. Alone, its vCPUs take the fastest pCPUs and take turns where those
are fewer than the vCPUs that run at a time. ``Unfairness`` of a host: the greatest over the least.
Both look back about a minute, since policies share fast cores by turns of seconds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amp_nova.hardware.relative_speed import alone_shares, running_at_a_time, speed_over
from amp_nova.model.observation import Usage
from amp_nova.model.topology import CoreType

MEMORY_S = 60.0
"""Time after which an interval counts for a third of what it did."""
DEMAND_LEAST_S = 1.0
"""An instance that wanted to run for less than this lately says nothing."""


class Recent(NamedTuple):
    """CPU seconds by core type, and seconds of demand, of about the last minute."""

    cpu_s: tuple[float, ...] = ()
    demand_s: float = 0.0


NOTHING = Recent()


@dataclass(frozen=True, slots=True)
class Shared:
    """One vCPU: its speedup on the fastest core type over the slowest, and what it did lately."""

    speedup: float | None
    recent: Recent


def enter(recent: Recent, used: Usage, position: int, types: int) -> Recent:
    """Add an interval on one core type; what was before fades."""
    kept = math.exp(-used.wall_s / MEMORY_S)
    known = recent.cpu_s if len(recent.cpu_s) == types else (0.0,) * types
    cpu_s = [s * kept for s in known]
    cpu_s[position] += used.run_s
    return Recent(tuple(cpu_s), recent.demand_s * kept + used.demand_s)


def slowdown(
    vcpus: Iterable[Shared], types: tuple[CoreType, ...], pcpus: Sequence[int]
) -> float | None:
    """Of an instance; ``None`` when the speedup of one of those that want to run is not known.

    ``pcpus``: how many of each core type it may use.
    """
    wanting = [v for v in vcpus if v.recent.demand_s > 0.0]
    shares = alone_shares(pcpus, running_at_a_time([v.recent.demand_s for v in wanting]))
    got = alone = demand_s = 0.0
    for vcpu in wanting:
        if vcpu.speedup is None or len(vcpu.recent.cpu_s) != len(types):
            return None
        demand_s += vcpu.recent.demand_s
        alone += vcpu.recent.demand_s * speed_over(types, shares, vcpu.speedup)
        got += speed_over(types, vcpu.recent.cpu_s, vcpu.speedup)
    return alone / got if got > 0.0 and demand_s >= DEMAND_LEAST_S else None


def unfairness(slowdowns: Sequence[float]) -> float | None:
    """Of a host; ``None`` without instances."""
    return max(slowdowns) / min(slowdowns) if slowdowns else None
