"""When the vCPUs of a workload want a pCPU, and how fast they would be on each core type."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from amp_nova.sim.scenarios.workload import Phase, Workload

CYCLE_S = 0.1
"""Length of one cycle of running and sleeping."""


@dataclass(frozen=True, slots=True)
class Turn:
    """From ``at_s`` on: whether the guest wants pCPUs, and its speed on each core type."""

    at_s: float
    wants: bool
    speeds: tuple[float, ...]
    ipc_ratio: float = 1.0


def turns(workload: Workload, shift_s: float = 0.0) -> Iterator[Turn]:
    """All turns of a workload in order of time, from 0.

    ``shift_s`` is where in its cycle of running and sleeping the guest starts.
    """
    lasts_s = math.fsum(p.for_s for p in workload.phases)
    rounds = 0
    while True:
        start = rounds * lasts_s if rounds else 0.0
        for phase in workload.phases:
            yield from _turns(phase, start, shift_s)
            if phase.for_s == math.inf:
                return
            start += phase.for_s
        rounds += 1


def _turns(phase: Phase, start_s: float, shift_s: float) -> Iterator[Turn]:
    wanted = phase.utilization_ratio
    if wanted in (0.0, 1.0):
        yield Turn(start_s, bool(wanted), phase.speeds, phase.ipc_ratio)
        return
    end_s = start_s + phase.for_s
    cycle = math.floor((start_s + shift_s) / CYCLE_S)
    at_s = start_s
    while at_s < end_s:
        # Multiplied rather than added up, so that the pattern does not drift in long runs.
        sleeps_s = (cycle + wanted) * CYCLE_S - shift_s
        if at_s < sleeps_s:
            yield Turn(at_s, True, phase.speeds, phase.ipc_ratio)
            at_s = sleeps_s
        if at_s < end_s:
            yield Turn(at_s, False, phase.speeds, phase.ipc_ratio)
        cycle += 1
        at_s = max(at_s, cycle * CYCLE_S - shift_s)
