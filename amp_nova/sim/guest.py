"""One guest in the simulator: what it does over time, and what it would achieve on its own."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence

from amp_nova.hardware.relative_speed import alone_shares
from amp_nova.model import cpu_weight
from amp_nova.model.observation import Domain
from amp_nova.model.topology import Topology
from amp_nova.sim.counters import CounterModel, Counting, Hardware
from amp_nova.sim.programs import begin
from amp_nova.sim.scenarios.scenario import Guest
from amp_nova.sim.scenarios.workload import CYCLE_S, Turn, Workload, turns
from amp_nova.sim.vcpu import SimVcpu


class Alone:
    """What a guest whose vCPUs all do the same would do without other guests, per vCPU."""

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
    """The turns of a workload: the present one, the next one, and its counter rates."""

    def __init__(
        self,
        workload: Workload,
        started_s: float,
        shift_s: float,
        model: CounterModel,
        alone: Sequence[Alone] = (),
    ) -> None:
        """``shift_s`` is where in its cycle of running and sleeping it starts.

        ``alone``: what the guest would do alone, to be kept up to date.
        """
        self.workload = workload
        self.model = model
        self.started_s = started_s
        self._since_s = started_s
        self._turns: Iterator[Turn] = turns(workload, shift_s)
        self.turn = next(self._turns)
        self.rates = model.rates(self.turn)
        self.upcoming = next(self._turns, None)
        self.vcpus: list[SimVcpu] = []
        """The vCPUs that behave like this, in step."""
        self._alone = alone

    def next(self, now_s: float) -> None:
        """Begin the upcoming turn; the vCPUs' counters must be up to date."""
        assert self.upcoming is not None
        self.accrue(now_s)
        self.turn = self.upcoming
        self.rates = self.model.rates(self.turn)
        self.upcoming = next(self._turns, None)

    def accrue(self, now_s: float) -> None:
        """Bring what it would do alone up to date."""
        for alone in self._alone:
            alone.accrue(self.turn, now_s - self._since_s)
        self._since_s = now_s


class SimGuest:
    """A guest on the simulated host."""

    def __init__(
        self, guest: Guest, started_s: float, seed: int, hardware: Hardware, counting: Counting
    ) -> None:
        """``seed`` decides where in their cycles of running and sleeping its vCPUs start."""
        self.guest = guest
        self.domain = Domain(guest.name, guest.name, len(guest.booking.vcpus), guest.specs)
        self.started_s = started_s
        self.completed_s: float | None = None
        self.removed = False
        self.cpu_weight = cpu_weight.DEFAULT * len(guest.booking.vcpus)
        self.alone = tuple(
            Alone(alone_shares(pcpus, len(guest.booking.vcpus)), guest.workload.work_ref_s)
            for pcpus in alone_pcpus(guest, hardware.topology)
            if guest.workload.even
        )
        """Alone on the slowest core type only, and alone on the host; empty if vCPUs differ."""
        self._chance = random.Random(f"{seed} {guest.name}")
        self.behaviours: list[Behaviour] = []
        for number, workload in enumerate(guest.workload.different(len(guest.booking.vcpus))):
            name = f"{guest.name} {number}" if number else guest.name
            model = CounterModel(hardware, counting, name, workload.ipc)
            shift_s = self._chance.uniform(0.0, CYCLE_S)
            self.behaviours.append(Behaviour(workload, started_s, shift_s, model, self.alone))
        self.vcpus: list[SimVcpu] = []

    def start(self, order: int, pcpus: frozenset[int]) -> None:
        """Add its vCPUs, which may run on these pCPUs; ``order``: that of the first one."""
        for index in range(len(self.guest.booking.vcpus)):
            behaviour = self.behaviours[min(index, len(self.behaviours) - 1)]
            vcpu = SimVcpu(self, behaviour, index, order + index, pcpus)
            behaviour.vcpus.append(vcpu)
            self.vcpus.append(vcpu)
        begin(self.vcpus, self.guest.workload, self._chance, self.started_s)

    def reached(self, vcpu: SimVcpu, now_s: float) -> Iterable[SimVcpu]:
        """A vCPU reached its target: returns those that now start or stop running."""
        assert vcpu.work.program is not None
        affected = vcpu.work.program.reached(vcpu, now_s)
        if all(v.work.done for v in self.vcpus):
            self.completed_s = now_s
        return affected

    def speed(self, now_s: float) -> float:
        """Mean speed of its vCPUs while it had work; their counters must be up to date."""
        ended_s = now_s if self.completed_s is None else self.completed_s
        took_s = (ended_s - self.started_s) * len(self.vcpus)
        return sum(v.work.progress_ref_s for v in self.vcpus) / took_s if took_s else 0.0


def alone_pcpus(guest: Guest, topology: Topology) -> tuple[Sequence[int], Sequence[int]]:
    """How many pCPUs of each core type a guest has if it is alone, in two cases.

    In the first it has one of the slowest type per vCPU, in the second the host's, of which
    ``amp:core_type`` may exclude some.
    """
    types, only = topology.core_types, guest.booking.core_type
    slowest = [len(guest.booking.vcpus), *(0 for _ in types[1:])]
    return slowest, [len(topology.pcpus_of(t.name)) * (only in (None, t.name)) for t in types]
