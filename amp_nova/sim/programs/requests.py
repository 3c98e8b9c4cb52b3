"""Requests that wait in one queue for the vCPUs of a guest.

A free vCPU takes the next request: one that is already waiting, or the next to arrive, for which it
sleeps. The same seed gives the same arrivals and the same work, whatever the host does.
"""

import math
import random
from array import array
from collections.abc import Sequence

from amp_nova.sim.scenarios.programs import Requests
from amp_nova.sim.vcpu import SimVcpu


class Queue:
    """The requests of one guest; ``latencies_s``: from arrival to the end, of those that ended."""

    together = spins = False

    def __init__(self, requests: Requests, started_s: float, chance: random.Random) -> None:
        self._requests = requests
        self._started_s = started_s
        self._chance = chance
        self._arrives_s = 0.0
        self._count = 0
        self._taken: dict[SimVcpu, float] = {}
        """Arrival time of the request that each vCPU works on or expects."""
        self.latencies_s = array("d")

    def begin(self, vcpu: SimVcpu, now_s: float) -> None:
        """Take the next request, which may be yet to arrive."""
        requests, work = self._requests, vcpu.work
        self._count += 1
        amount = requests.work_ref_s
        if requests.poisson:
            self._arrives_s += self._chance.expovariate(requests.per_s)
        else:  # multiplied rather than added up, so that it does not drift
            self._arrives_s = self._count / requests.per_s
        if requests.exponential:
            amount *= self._chance.expovariate(1.0)
        at_s = self._taken[vcpu] = self._started_s + self._arrives_s
        work.target_ref_s = work.progress_ref_s + amount
        work.waits_until_s = at_s if at_s > now_s else None

    def reached(self, vcpu: SimVcpu, now_s: float) -> Sequence[SimVcpu]:
        """The expected request arrives, or the vCPU has finished one."""
        work = vcpu.work
        if work.waits_until_s is not None:
            work.waits_until_s = None
            return [vcpu]
        work.progress_ref_s = work.target_ref_s
        self.latencies_s.append(now_s - self._taken[vcpu])
        self.begin(vcpu, now_s)
        return [vcpu]


def latencies_s(vcpu: SimVcpu) -> Sequence[float]:
    """The latencies of this vCPU's guest, in ascending order; empty without requests."""
    program = vcpu.work.program
    return sorted(program.latencies_s) if isinstance(program, Queue) else ()


def percentile(values: Sequence[float], ratio: float) -> float | None:
    """The least value that at least this share of the values do not exceed; ``None`` without any.

    ``values`` are in ascending order.
    """
    return values[max(0, math.ceil(ratio * len(values)) - 1)] if values else None
