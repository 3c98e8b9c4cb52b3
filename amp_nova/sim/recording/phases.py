"""The phases of a vCPU: a lasting change of its demand or its speedup begins a new one."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from amp_nova.profiling.speedup import Estimate

DEMAND_STEP = 0.1
"""Demand that differs from the phase's mean by more than this share of the time is a change."""
SPEEDUP_STEP_RATIO = 0.15
"""A speedup that differs by more than this is a change, as for the phases of kwon2011."""
CONFIRMED = 2
"""Number of buckets in a row that have to differ before a phase ends."""


class Bucket(NamedTuple):
    """One vCPU over a short time, in seconds of wall time.

    ``known_s``: how much of it was observed; ``demand_s``: how long the vCPU wanted to run in the
    observed time; ``speedup``: its speedup as known at the end, if measured on both core types.
    """

    length_s: float
    known_s: float
    demand_s: float
    speedup: Estimate | None = None


class Phase(NamedTuple):
    """A time in which the vCPU behaved alike; ``speedup``: the most certain estimate in it."""

    for_s: float
    demand_ratio: float
    speedup: Estimate | None


def phases(buckets: Sequence[Bucket], most: int) -> tuple[Phase, ...]:
    """The phases of a vCPU, at most ``most``; smaller changes are ignored if there are more."""
    factor = 1.0
    while True:
        found = _divided(buckets, factor)
        if len(found) <= most:
            return tuple(_phase(part) for part in found)
        factor = factor * 1.5 if factor < 1e3 else math.inf


def _divided(buckets: Sequence[Bucket], factor: float) -> list[list[Bucket]]:
    """The buckets of each phase; ``factor``: how much greater than usual a step has to be."""
    parts: list[list[Bucket]] = []
    differing: list[Bucket] = []
    for bucket in buckets:
        if not parts:
            parts.append([bucket])
        elif not _differs(parts[-1], bucket, factor):
            parts[-1] += [*differing, bucket]
            differing = []
        else:
            differing.append(bucket)
            if len(differing) >= CONFIRMED:
                parts.append(differing)
                differing = []
    if parts:
        parts[-1] += differing
    return parts


def _differs(part: Sequence[Bucket], bucket: Bucket, factor: float) -> bool:
    usual, now = _demand_ratio(part), _demand_ratio([bucket])
    if usual is not None and now is not None and abs(now - usual) > factor * DEMAND_STEP:
        return True
    before, after = _best(part), bucket.speedup
    if before is None or after is None:
        return False
    return abs(after.value - before.value) > factor * SPEEDUP_STEP_RATIO * before.value


def _demand_ratio(part: Sequence[Bucket]) -> float | None:
    """Share of the time that it wanted to run; ``None``: not observed."""
    known_s = math.fsum(b.known_s for b in part)
    return min(1.0, math.fsum(b.demand_s for b in part) / known_s) if known_s > 0.0 else None


def _best(part: Sequence[Bucket]) -> Estimate | None:
    known = (b.speedup for b in part if b.speedup is not None)
    return min(known, key=lambda estimate: estimate.se, default=None)


def _phase(part: Sequence[Bucket]) -> Phase:
    # Time that was not observed is assumed to be like the rest of the phase.
    return Phase(math.fsum(b.length_s for b in part), _demand_ratio(part) or 0.0, _best(part))
