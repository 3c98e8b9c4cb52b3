"""What a recorded vCPU does, as the workload of a scenario."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amp_nova.hardware.effective_speed import speed
from amp_nova.model.topology import CoreType
from amp_nova.profiling.speedup import Estimate
from amp_nova.sim.recording.phases import SPEEDUP_STEP_RATIO, Phase, phases
from amp_nova.sim.recording.recorder import RecordedVcpu
from amp_nova.sim.scenarios.hosts import RATE_LEAST, RATE_MOST

ASSUMED, FLAVOR = "assumed", "flavor"
"""Sources of a speedup beside the estimators': the coefficients, or ``amp:efficiency``."""
DIGITS = 4


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


def gain(measured: Estimate | None, hinted: float | None) -> Gain:
    """The speedup to count with: measured, else what the flavor states, else none."""
    if measured is not None:
        return Gain(round(measured.value, DIGITS), round(measured.se, DIGITS), str(measured.source))
    return Gain(hinted, None, ASSUMED if hinted is None else FLAVOR)


def workload(
    vcpu: RecordedVcpu, types: tuple[CoreType, ...], known: Gain, phases_max: int
) -> dict[str, Any]:
    """The keys of one vCPU's workload; a speedup that was never measured is ``null``."""
    found: dict[str, Any] = {}
    if len(types) > 1:
        found["speedup"] = None if known.ratio is None else _speeds(types, known.ratio)
    if vcpu.ipc:
        found["ipc"] = {n: _bounded(v) for n, v in vcpu.ipc.items() if n in {t.name for t in types}}
    parts = phases(vcpu.buckets, phases_max)
    total_s = math.fsum(p.for_s for p in parts)
    mean = math.fsum(p.for_s * p.demand_ratio for p in parts) / total_s if total_s else 0.0
    found["utilization"] = round(mean, DIGITS)
    if len(parts) > 1:
        own = any(differ(part.speedup, known) for part in parts)
        found["phases"] = [_phase(part, types if own else types[:1]) for part in parts]
        found["phases_follow"] = "clock"  # the recording knows when, not after how much work
    return found


def differ(speedup: Estimate | None, known: Gain) -> bool:
    """Whether the speedup of a phase differs from that of the vCPU."""
    if speedup is None or known.ratio is None:
        return False
    return abs(speedup.value - known.ratio) > SPEEDUP_STEP_RATIO * known.ratio


def with_instructions(
    found: Mapping[str, Any], vcpu: RecordedVcpu, reference_ips: float, known: Gain, types: Any
) -> dict[str, Any]:
    """The workload of a vCPU that books instructions: it retires as many as were counted."""
    slow_s = math.fsum(s * known.on(types, at) for at, s in enumerate(vcpu.run_s))
    if not slow_s or not vcpu.instructions:
        return dict(found)
    ratio = vcpu.instructions / slow_s / (reference_ips * (types[0].coefficient or 1.0))
    for_s = math.fsum(b.length_s for b in vcpu.buckets)
    parts = found.get("phases") or [{"for_s": round(for_s, 3), "utilization": found["utilization"]}]
    changed = {k: v for k, v in found.items() if k != "ipc"}
    return {**changed, "phases": [{**part, "ipc_ratio": _bounded(ratio)} for part in parts]}


def _phase(part: Phase, types: tuple[CoreType, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "for_s": max(0.001, round(part.for_s, 3)),
        "utilization": round(part.demand_ratio, DIGITS),
    }
    if part.speedup is not None and len(types) > 1:
        found["speedup"] = _speeds(types, part.speedup.value)
    return found


def _speeds(types: tuple[CoreType, ...], ratio: float) -> dict[str, float]:
    """Speeds on every core type but the slowest."""
    return {t.name: _bounded(speed(types, at, ratio)) for at, t in enumerate(types) if at}


def _bounded(value: float) -> float:
    return round(min(max(value, RATE_LEAST), RATE_MOST), DIGITS)
