"""vCPUs that wait for each other, or work on their own."""

import math
from collections.abc import Sequence

from amp_nova.sim.scenarios.workload import Workload
from amp_nova.sim.vcpu import SimVcpu


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
