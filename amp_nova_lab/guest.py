"""One guest in the simulator: what it does over time."""

import itertools
import math
import random
from collections.abc import Iterable
from dataclasses import replace

from amp_nova.model import cpu_weight
from amp_nova.model.observation import Domain
from amp_nova.model.topology import Topology
from amp_nova_lab.counters import CounterModel, Counting, Rates
from amp_nova_lab.programs import begin
from amp_nova_lab.scenarios.scenario import Guest
from amp_nova_lab.scenarios.workload import CYCLE_S, Turn, Workload, turns_of
from amp_nova_lab.vcpu import SimVcpu


class Behaviour:
    """What vCPUs do, phase by phase: the present turn, the next one, and the counter rates."""

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
        self.vcpus: list[SimVcpu] = []
        """The vCPUs that behave like this, in step; one, if its phases follow its work."""
        self.version = 0
        """How many phases ended by work: each puts off the upcoming turn."""
        self.ends_ref_s = math.inf
        """Progress at which the present phase ends."""
        self.turn: Turn
        self.rates: tuple[Rates, ...]
        self.upcoming: Turn | None
        self._shift_s = shift_s
        self._phases = itertools.cycle(workload.phases)
        self._next_phase(0.0)

    def next(self) -> None:
        """Begin the upcoming turn; the vCPUs' counters must be up to date."""
        assert self.upcoming is not None
        if self.upcoming.at_s >= self._ends_s:
            self._next_phase(self._ends_s)
        else:
            self._take(self.upcoming)

    def end_phase(self, now_s: float) -> None:
        """Begin the next phase, as the work of the present one is done."""
        self.version += 1
        self._next_phase(now_s - self.started_s)

    def _next_phase(self, start_s: float) -> None:
        """``start_s`` and ``_ends_s``: after the start of the guest."""
        phase = next(self._phases)
        self._ends_s = start_s + phase.for_s
        if phase.work_ref_s is not None:
            done_ref_s = self.vcpus[0].work.progress_ref_s if self.vcpus else 0.0
            self.ends_ref_s = done_ref_s + phase.work_ref_s
        else:
            self.ends_ref_s = math.inf
        self._turns = turns_of(phase, start_s, self._shift_s)
        self._take(next(self._turns))

    def _take(self, turn: Turn) -> None:
        self.turn = turn
        self.rates = self.model.rates(turn)
        self.upcoming = next(self._turns, None)
        if self.upcoming is None and self._ends_s < math.inf:
            self.upcoming = replace(turn, at_s=self._ends_s)


class SimGuest:
    """A guest on the simulated host."""

    def __init__(
        self, guest: Guest, started_s: float, seed: int, topology: Topology, counting: Counting
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
        vcpus = len(guest.booking.vcpus)
        workloads = guest.workload.different(vcpus)
        for number, workload in enumerate(workloads):
            name = f"{guest.name} {number}" if number else guest.name
            model = CounterModel(topology, counting, name, workload.ipc)
            shift_s = self._chance.uniform(0.0, CYCLE_S)
            own = workload.by_work and number == len(workloads) - 1
            for _ in range(vcpus - number if own else 1):
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
