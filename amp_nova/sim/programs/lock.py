"""vCPUs that share a lock and spin while another one holds it."""

import math
from collections import deque
from collections.abc import Sequence

from amp_nova.sim.scenarios.programs import Lock
from amp_nova.sim.vcpu import SimVcpu


class Locking:
    """The vCPUs of one guest: work without the lock, then with it, in turn.

    A vCPU that finds the lock taken waits in order of arrival and spins: it runs without progress.
    A holder that has no pCPU keeps all the others waiting.
    """

    together = spins = True

    def __init__(self, lock: Lock, vcpus: Sequence[SimVcpu]) -> None:
        self._lock = lock
        self._holder: SimVcpu | None = None
        self._queue: deque[SimVcpu] = deque()
        for vcpu in vcpus:
            self._expect(vcpu, lock.after_ref_s)

    def reached(self, vcpu: SimVcpu, now_s: float) -> Sequence[SimVcpu]:
        """A vCPU needs the lock, has done what it needed it for, or has finished its work."""
        work = vcpu.work
        work.progress_ref_s = work.target_ref_s
        work.done = work.target_ref_s == work.behaviour.workload.work_ref_s
        affected = [vcpu]
        if vcpu is self._holder:
            self._holder = self._queue.popleft() if self._queue else None
            if self._holder is not None:
                self._holder.accrue(now_s)  # until now it was spinning
                self._holder.work.waits_until_s = None
                self._expect(self._holder, self._lock.hold_ref_s)
                affected.append(self._holder)
            self._expect(vcpu, self._lock.after_ref_s)
        elif work.done:
            pass
        elif self._holder is None:
            self._holder = vcpu
            self._expect(vcpu, self._lock.hold_ref_s)
        else:
            work.waits_until_s = math.inf
            self._queue.append(vcpu)
        return affected

    def _expect(self, vcpu: SimVcpu, work_ref_s: float) -> None:
        least = vcpu.work.behaviour.workload.work_ref_s
        target = vcpu.work.progress_ref_s + work_ref_s
        vcpu.work.target_ref_s = target if least is None else min(target, least)
