# SPDX-License-Identifier: Apache-2.0
"""What the programs inside guests wait for, besides pCPUs: barriers, I/O and requests.

A program decides when its vCPUs wait and how much work they do next; it knows neither pCPUs nor
core types.
"""

import math
import random
from array import array
from collections.abc import Sequence

from amp_nova_lab.guest import SimGuest, SimVcpu
from amp_nova_lab.scenarios.workload import CYCLE_S, Io, Requests, Workload


def target_ref_s(workload: Workload, barriers: int) -> float:
    """Progress at which a vCPU that passed this many barriers waits or is done."""
    target = math.inf if workload.work_ref_s is None else workload.work_ref_s
    between = workload.barriers_ref_s
    if between:
        rounds, over = divmod(barriers + 1, len(between))
        target = min(target, rounds * sum(between) + sum(between[:over]))
    return target


class Barriers:
    """The vCPUs of one guest. Those without barriers only finish their work."""

    together = True

    def __init__(self, vcpus: Sequence[SimVcpu], *, spins: bool) -> None:
        self.spins = spins
        self._vcpus = vcpus
        self._together = [v for v in vcpus if v.work.behaviour.workload.barriers_ref_s]
        self._passed = 0
        for vcpu in vcpus:
            vcpu.work.target_ref_s = target_ref_s(vcpu.work.behaviour.workload, 0)
        self._skip()

    def reached(self, vcpu: SimVcpu, now_s: float) -> Sequence[SimVcpu]:
        """A vCPU reached its target: returns those that now start or stop running."""
        work = vcpu.work
        work.progress_ref_s = work.target_ref_s
        if work.target_ref_s == work.behaviour.workload.work_ref_s:
            work.done = True
        else:
            work.waits_until_s = math.inf
        if not work.behaviour.workload.barriers_ref_s or not self._all_arrived():
            return [vcpu]
        for waiting in self._together:
            waiting.accrue(now_s)
        self._release()
        self._skip()
        return self._vcpus

    def _all_arrived(self) -> bool:
        return all(v.work.done or v.work.blocked for v in self._together)

    def _release(self) -> None:
        self._passed += 1
        for vcpu in self._together:
            vcpu.work.waits_until_s = None
            if not vcpu.work.done:
                workload = vcpu.work.behaviour.workload
                vcpu.work.target_ref_s = target_ref_s(workload, self._passed)

    def _skip(self) -> None:
        """Let vCPUs without work before the next barrier wait there at once."""
        while True:
            for vcpu in self._together:
                idle = vcpu.work.target_ref_s <= vcpu.work.progress_ref_s
                vcpu.work.waits_until_s = math.inf if idle and not vcpu.work.done else None
            if all(v.work.done for v in self._together) or not self._all_arrived():
                return
            self._release()


class Transfers:
    """What one vCPU transfers, batch by batch: it computes on some bytes, others are on the line.

    Of every batch one part is pipelined: computing and the line run side by side, and the slower
    one decides. The other part is computed on and then transferred. With ``a`` seconds per byte on
    the line, ``b`` seconds of computing, and a pipelined part ``o``, a byte takes
    ``o max(a, b) + (1 - o) (a + b) = max(a, b) + (1 - o) min(a, b)``.
    """

    together = spins = False

    def __init__(self, io: Io) -> None:
        # So many bytes that computing and the line take one cycle, one after the other.
        batch_bytes = CYCLE_S / (io.work_ref_s_per_byte + 1.0 / io.line_bytes_s)
        work_ref_s, line_s = batch_bytes * io.work_ref_s_per_byte, batch_bytes / io.line_bytes_s
        ratios = ((io.overlap_ratio, True), (1.0 - io.overlap_ratio, False))
        self._parts = [(work_ref_s * r, line_s * r, overlaps) for r, overlaps in ratios if r > 0.0]
        """Work, seconds on the line, and whether they overlap, of the parts of a batch."""
        self._part = 0
        self._began_s = 0.0

    def begin(self, vcpu: SimVcpu, now_s: float) -> None:
        """Compute on the present part of a batch."""
        self._began_s = now_s
        vcpu.work.waits_until_s = None
        vcpu.work.target_ref_s = vcpu.work.progress_ref_s + self._parts[self._part][0]

    def reached(self, vcpu: SimVcpu, now_s: float) -> Sequence[SimVcpu]:
        """It has computed on a part, or the line is free again."""
        if vcpu.work.waits_until_s is None:
            vcpu.work.progress_ref_s = vcpu.work.target_ref_s
            _, line_s, overlaps = self._parts[self._part]
            free_s = (self._began_s if overlaps else now_s) + line_s
            if free_s > now_s:
                vcpu.work.waits_until_s = free_s
                return [vcpu]
        self._part = (self._part + 1) % len(self._parts)
        self.begin(vcpu, now_s)
        return [vcpu]


class Queue:
    """The requests of one guest; ``latencies_s``: from arrival to the end, of those that ended.

    A free vCPU takes the next request: one that is already waiting, or the next to arrive, for
    which it sleeps. The same seed gives the same arrivals and work, whatever the host does.
    """

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
        if requests.arrivals == "poisson":
            self._arrives_s += self._chance.expovariate(requests.per_s)
        else:  # multiplied rather than added up, so that it does not drift
            self._arrives_s = self._count / requests.per_s
        if requests.service == "exponential":
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


def begin(guest: SimGuest) -> None:
    """Begin the programs of a guest that starts now."""
    whole, now_s = guest.guest.workload, guest.started_s
    queue = None if whole.requests is None else Queue(whole.requests, now_s, guest.chance)
    others = []
    for vcpu in guest.vcpus:
        io = vcpu.work.behaviour.workload.io
        program = queue if io is None else Transfers(io)
        if program is None:
            others.append(vcpu)
        else:
            vcpu.work.program = program
            program.begin(vcpu, now_s)
    barriers = Barriers(others, spins=whole.spins)
    for vcpu in others:
        vcpu.work.program = barriers
