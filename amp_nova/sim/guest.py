"""One guest in the simulator: what it does over time, and what it would achieve on its own."""

import math
from collections.abc import Iterator, Sequence

from amp_nova.hardware.relative_speed import alone_shares
from amp_nova.model.observation import Domain
from amp_nova.model.topology import Topology
from amp_nova.sim.counters import CounterModel, Counting, Hardware
from amp_nova.sim.scenarios.scenario import Guest
from amp_nova.sim.scenarios.workload import Turn, Workload, turns
from amp_nova.sim.vcpu import SimVcpu


class Alone:
    """What a guest would do without other guests, per vCPU."""

    def __init__(self, shares: Sequence[float], work_ref_s: float | None) -> None:
        """``shares`` of its time that each vCPU spends on each core type, slowest first."""
        self._shares = shares
        self._work_ref_s = math.inf if work_ref_s is None else work_ref_s
        self._progress_ref_s = 0.0
        self._took_s = 0.0
        self._done = False

    def accrue(self, turn: Turn, passed_s: float) -> None:
        """Continue for some time, all of it in one turn."""
        if self._done:
            return
        paired = zip(self._shares, turn.speeds, strict=False)
        rate = sum(share * speed for share, speed in paired) if turn.wants else 0.0
        left = self._work_ref_s - self._progress_ref_s
        if rate > 0.0 and rate * passed_s >= left:
            self._progress_ref_s, self._done = self._work_ref_s, True
            self._took_s += left / rate
        else:
            self._progress_ref_s += rate * passed_s
            self._took_s += passed_s

    @property
    def speed(self) -> float:
        """Mean speed while it had work."""
        return self._progress_ref_s / self._took_s if self._took_s else 0.0


class Behaviour:
    """The turns of a guest's workload: the present one, the next one, and its counter rates."""

    def __init__(
        self,
        workload: Workload,
        started_s: float,
        shift_s: float,
        model: CounterModel,
        alone: Sequence[float],
    ) -> None:
        """``alone``: time of each vCPU on each core type if the guest were alone on the host."""
        self.model = model
        self._since_s = started_s
        self._turns: Iterator[Turn] = turns(workload, shift_s)
        self.turn = next(self._turns)
        self.rates = model.rates(self.turn)
        self.upcoming = next(self._turns, None)
        slowest = (1.0, *(0.0 for _ in alone[1:]))
        self.alone = tuple(Alone(shares, workload.work_ref_s) for shares in (slowest, alone))
        """Alone on cores of the slowest type only, and alone on the host."""

    def next(self, now_s: float) -> None:
        """Begin the upcoming turn; the vCPUs' counters must be up to date."""
        assert self.upcoming is not None
        self.accrue(now_s)
        self.turn = self.upcoming
        self.rates = self.model.rates(self.turn)
        self.upcoming = next(self._turns, None)

    def accrue(self, now_s: float) -> None:
        """Bring what it would do alone up to date."""
        for alone in self.alone:
            alone.accrue(self.turn, now_s - self._since_s)
        self._since_s = now_s


class SimGuest:
    """A guest on the simulated host."""

    def __init__(
        self, guest: Guest, started_s: float, shift_s: float, hardware: Hardware, counting: Counting
    ) -> None:
        """``shift_s`` is where in its cycle of running and sleeping the guest starts."""
        self.guest = guest
        self.domain = Domain(guest.name, guest.name, len(guest.booking.vcpus), guest.specs)
        self.started_s = started_s
        self.completed_s: float | None = None
        self.removed = False
        self.idle_class = False
        self.vcpus: list[SimVcpu] = []
        model = CounterModel(hardware, counting, guest.name, guest.workload.ipc)
        alone = _alone(guest, hardware.topology)
        self.behaviour = Behaviour(guest.workload, started_s, shift_s, model, alone)
        self._barriers = 0

    def target_ref_s(self, barriers: int) -> float:
        """Progress at which a vCPU that passed this many barriers waits or is done."""
        workload = self.guest.workload
        barrier, work = workload.barrier_ref_s, workload.work_ref_s
        return min(
            math.inf if barrier is None else (barriers + 1) * barrier,
            math.inf if work is None else work,
        )

    def reached(self, vcpu: SimVcpu, now_s: float) -> list[SimVcpu]:
        """A vCPU reached its target: returns those that now start or stop running."""
        work = vcpu.work
        work.progress_ref_s = work.target_ref_s
        if work.target_ref_s == self.guest.workload.work_ref_s:
            work.done = True
        else:
            work.blocked = True
        if all(v.work.done for v in self.vcpus):
            self.completed_s = now_s
        if not all(v.work.done or v.work.blocked for v in self.vcpus):
            return [vcpu]
        self._barriers += 1
        for waiting in (v.work for v in self.vcpus):
            waiting.blocked = False
            if not waiting.done:
                waiting.target_ref_s = self.target_ref_s(self._barriers)
        return self.vcpus


def _alone(guest: Guest, topology: Topology) -> tuple[float, ...]:
    """Time of each vCPU on each core type without other guests; ``amp:core_type`` binds."""
    only = guest.booking.core_type
    pcpus = [len(topology.pcpus_of(t.name)) * (only in (None, t.name)) for t in topology.core_types]
    return alone_shares(pcpus, len(guest.booking.vcpus))
