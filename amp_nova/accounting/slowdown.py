# SPDX-License-Identifier: Apache-2.0
"""Slowdown and unfairness (saez2015, section 2): what sharing a host costs best-effort instances.

Slowdown of an instance: the speed that it would have alone on this host during the time it wanted
to run, over the speed it got. Alone, its vCPUs run on the fastest pCPUs, and take turns on them if
there are fewer than vCPUs that run at a time. Unfairness of a host: greatest over least slowdown.
Both look back about a minute, because policies rotate vCPUs over the fast cores within seconds.
"""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from amp_nova.hardware.effective_speed import alone_shares, running_at_a_time, speed_over
from amp_nova.model.observation import Usage
from amp_nova.model.topology import CoreType

MEMORY_S = 60.0
"""Time constant of the exponential decay of past intervals."""
DEMAND_LEAST_S = 1.0
"""An instance with less recent demand than this has no slowdown."""


class Recent(Struct, frozen=True):
    """CPU seconds by core type, and seconds of demand, of about the last minute."""

    cpu_s: tuple[float, ...] = ()
    demand_s: float = 0.0


NOTHING = Recent()


def enter(recent: Recent, used: Usage, position: int, types: int) -> Recent:
    """Decay what is recorded, then add an interval that lies on one core type."""
    kept = math.exp(-used.wall_s / MEMORY_S)
    before = recent.cpu_s if len(recent.cpu_s) == types else (0.0,) * types
    cpu_s = [s * kept for s in before]
    cpu_s[position] += used.run_s
    return Recent(tuple(cpu_s), recent.demand_s * kept + used.demand_s)


def slowdown(
    vcpus: Iterable[tuple[float | None, Recent]], types: tuple[CoreType, ...], pcpus: Sequence[int]
) -> float | None:
    """The slowdown of an instance, from the speedup and the recent usage of each of its vCPUs.

    ``None`` if it had too little demand or got nothing, or if the speedup of a vCPU that wanted to
    run is unknown. ``pcpus``: how many pCPUs of each core type it may use.
    """
    wanting = [(gain, recent) for gain, recent in vcpus if recent.demand_s > 0.0]
    shares = alone_shares(pcpus, running_at_a_time([recent.demand_s for _, recent in wanting]))
    actual = alone = demand_s = 0.0
    for speedup, recent in wanting:
        if speedup is None or len(recent.cpu_s) != len(types):
            return None
        demand_s += recent.demand_s
        alone += recent.demand_s * speed_over(types, shares, speedup)
        actual += speed_over(types, recent.cpu_s, speedup)
    return alone / actual if actual > 0.0 and demand_s >= DEMAND_LEAST_S else None


def unfairness(slowdowns: Sequence[float]) -> float | None:
    """The unfairness of a host with these slowdowns; ``None`` if there are none."""
    return max(slowdowns) / min(slowdowns) if slowdowns else None
