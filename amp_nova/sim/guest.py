"""One guest in the simulator: what it does over time."""

import random
from collections.abc import Iterable, Iterator

from amp_nova.model import cpu_weight
from amp_nova.model.observation import Domain
from amp_nova.sim.counters import CounterModel, Counting, Hardware
from amp_nova.sim.programs import begin
from amp_nova.sim.scenarios.scenario import Guest
from amp_nova.sim.scenarios.workload import CYCLE_S, Turn, Workload, turns
from amp_nova.sim.vcpu import SimVcpu


class Behaviour:
    """The turns of a workload: the present one, the next one, and its counter rates."""

    def __init__(
        self,
        workload: Workload,
        started_s: float,
        shift_s: float,
        model: CounterModel,
    ) -> None:
        """``shift_s`` is where in its cycle of running and sleeping it starts."""
        self.workload = workload
        self.model = model
        self.started_s = started_s
        self._turns: Iterator[Turn] = turns(workload, shift_s)
        self.turn = next(self._turns)
        self.rates = model.rates(self.turn)
        self.upcoming = next(self._turns, None)
        self.vcpus: list[SimVcpu] = []
        """The vCPUs that behave like this, in step."""

    def next(self) -> None:
        """Begin the upcoming turn; the vCPUs' counters must be up to date."""
        assert self.upcoming is not None
        self.turn = self.upcoming
        self.rates = self.model.rates(self.turn)
        self.upcoming = next(self._turns, None)


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
        self.cpu_weight = cpu_weight.DEFAULT
        self.runnable = 0
        """How many of its vCPUs the host's scheduler has."""
        self._chance = random.Random(f"{seed} {guest.name}")
        self.behaviours: list[Behaviour] = []
        for number, workload in enumerate(guest.workload.different(len(guest.booking.vcpus))):
            name = f"{guest.name} {number}" if number else guest.name
            model = CounterModel(hardware, counting, name, workload.ipc)
            shift_s = self._chance.uniform(0.0, CYCLE_S)
            self.behaviours.append(Behaviour(workload, started_s, shift_s, model))
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
