# SPDX-License-Identifier: Apache-2.0
"""What a recorded vCPU does, as the workload of a scenario.

A lasting change of its demand or its speedup begins a new phase.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amp_nova.hardware.effective_speed import speed
from amp_nova.model.topology import CoreType
from amp_nova.profiling.speedup import SpeedupEstimate
from amp_nova_lab.recording.recorder import Bucket, VcpuRecording
from amp_nova_lab.scenarios.hosts import RATE_LEAST, RATE_MOST

ASSUMED, FLAVOR = "assumed", "flavor"
"""Sources of a speedup beside the estimators': the coefficients, or ``amp:efficiency``."""
DIGITS = 4
DEMAND_STEP = 0.1
"""Demand that differs from the phase's mean by more than this share of the time is a change."""
SPEEDUP_STEP_RATIO = 0.15
"""A speedup that differs by more than this is a change, as for the phases of kwon2011."""
CONFIRMED = 2
"""Number of buckets in a row that have to differ before a phase ends."""


@dataclass(frozen=True, slots=True)
class BehaviourPhase:
    """A time in which the vCPU behaved alike; ``speedup``: the most certain estimate in it."""

    for_s: float
    demand_ratio: float
    speedup: SpeedupEstimate | None


@dataclass(frozen=True, slots=True)
class Gain:
    """A vCPU's speed on the fastest core type over the slowest; ``error`` is a standard error.

    ``ratio`` is ``None`` if it is unknown, ``error`` if it was not measured.
    """

    ratio: float | None
    error: float | None
    source: str

    def on(self, types: tuple[CoreType, ...], at: int) -> float:
        """Its speed on a core type over the slowest; without a speedup, as coefficients say."""
        if self.ratio is None:
            return (types[at].coefficient or 1.0) / (types[0].coefficient or 1.0)
        return speed(types, at, self.ratio)


def gain(measured: SpeedupEstimate | None, hinted: float | None) -> Gain:
    """The speedup to count with: measured, else what the flavor states, else none."""
    if measured is not None:
        return Gain(round(measured.value, DIGITS), round(measured.se, DIGITS), str(measured.source))
    return Gain(hinted, None, ASSUMED if hinted is None else FLAVOR)


def workload(
    vcpu: VcpuRecording, types: tuple[CoreType, ...], gain: Gain, phases_max: int
) -> dict[str, Any]:
    """The keys of one vCPU's workload; a speedup that was never measured is ``null``."""
    keys: dict[str, Any] = {}
    if len(types) > 1:
        keys["speedup"] = None if gain.ratio is None else _speeds(types, gain.ratio)
    if vcpu.ipc:
        keys["ipc"] = {n: _bounded(v) for n, v in vcpu.ipc.items() if n in {t.name for t in types}}
    parts = phases(vcpu.buckets, phases_max)
    total_s = math.fsum(p.for_s for p in parts)
    mean = math.fsum(p.for_s * p.demand_ratio for p in parts) / total_s if total_s else 0.0
    keys["utilization"] = round(mean, DIGITS)
    if len(parts) > 1:
        own = any(differ(part.speedup, gain) for part in parts)
        keys["phases"] = [_keys(part, types if own else types[:1]) for part in parts]
        keys["phases_follow"] = "clock"  # the recording knows when, not after how much work
    return keys


def differ(speedup: SpeedupEstimate | None, gain: Gain) -> bool:
    """Whether the speedup of a phase differs from that of the vCPU."""
    if speedup is None or gain.ratio is None:
        return False
    return abs(speedup.value - gain.ratio) > SPEEDUP_STEP_RATIO * gain.ratio


def with_instructions(
    keys: Mapping[str, Any], vcpu: VcpuRecording, reference_ips: float, gain: Gain, types: Any
) -> dict[str, Any]:
    """The workload of a vCPU that books instructions: it retires as many as were counted."""
    slow_s = math.fsum(s * gain.on(types, at) for at, s in enumerate(vcpu.run_s))
    if not slow_s or not vcpu.instructions:
        return dict(keys)
    ratio = vcpu.instructions / slow_s / (reference_ips * (types[0].coefficient or 1.0))
    for_s = math.fsum(b.length_s for b in vcpu.buckets)
    parts = keys.get("phases") or [{"for_s": round(for_s, 3), "utilization": keys["utilization"]}]
    changed = {k: v for k, v in keys.items() if k != "ipc"}
    return {**changed, "phases": [{**part, "ipc_ratio": _bounded(ratio)} for part in parts]}


def _keys(part: BehaviourPhase, types: tuple[CoreType, ...]) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "for_s": max(0.001, round(part.for_s, 3)),
        "utilization": round(part.demand_ratio, DIGITS),
    }
    if part.speedup is not None and len(types) > 1:
        keys["speedup"] = _speeds(types, part.speedup.value)
    return keys


def _speeds(types: tuple[CoreType, ...], ratio: float) -> dict[str, float]:
    """Speeds on every core type but the slowest."""
    return {t.name: _bounded(speed(types, at, ratio)) for at, t in enumerate(types) if at}


def _bounded(value: float) -> float:
    return round(min(max(value, RATE_LEAST), RATE_MOST), DIGITS)


def phases(buckets: Sequence[Bucket], most: int) -> tuple[BehaviourPhase, ...]:
    """The phases of a vCPU, at most ``most``; smaller changes are ignored if there are more."""
    factor = 1.0
    while True:
        parts = _divided(buckets, factor)
        if len(parts) <= most:
            return tuple(_phase(part) for part in parts)
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
    observed_s = math.fsum(b.observed_s for b in part)
    return min(1.0, math.fsum(b.demand_s for b in part) / observed_s) if observed_s > 0.0 else None


def _best(part: Sequence[Bucket]) -> SpeedupEstimate | None:
    estimates = (b.speedup for b in part if b.speedup is not None)
    return min(estimates, key=lambda estimate: estimate.se, default=None)


def _phase(part: Sequence[Bucket]) -> BehaviourPhase:
    # Time that was not observed is assumed to be like the rest of the phase.
    return BehaviourPhase(
        math.fsum(b.length_s for b in part), _demand_ratio(part) or 0.0, _best(part)
    )
