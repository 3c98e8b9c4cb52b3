# SPDX-License-Identifier: Apache-2.0
"""One guest in the simulator and its vCPUs: what they do, where they run and what they count."""

import itertools
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from amp_nova.model import cpu_weight
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Counts, Domain, VcpuReading, VcpuSample
from amp_nova.model.topology import Topology
from amp_nova_lab.counters import CounterModel, Counting, Rates
from amp_nova_lab.scenarios.scenario import Guest
from amp_nova_lab.scenarios.workload import CYCLE_S, Turn, Workload, turns_of


@dataclass(slots=True)
class Moves:
    """How often a vCPU changed its pCPU, and how often that crossed last-level caches."""

    total: int = 0
    cross_llc: int = 0


@dataclass(slots=True)
class RunningShare:
    """What a vCPU gets: its share of each pCPU, and the share of time it is throttled."""

    cores: dict[int, float]
    throttled_ratio: float


class Rate(NamedTuple):
    """A share of time on a core type, by its position, and what that type keeps of its speed.

    ``clock_ratio``: its clock over the calibrated one; ``kept_ratio``: the same, less what busy
    siblings cost.
    """

    position: int
    cores: float
    kept_ratio: float = 1.0
    clock_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Meter:
    """What a vCPU did since it started. ``run_s`` is by core type, slowest first.

    ``full_speed_s``: ``run_s`` less what busy siblings and slow clocks cost.
    """

    run_s: tuple[float, ...]
    wait_s: float = 0.0
    throttled_s: float = 0.0
    progress_ref_s: float = 0.0
    instructions: float = 0.0
    full_speed_s: tuple[float, ...] = ()


@dataclass(slots=True)
class VcpuCounters:
    """Cumulative counters, valid at ``since_s``, and the rates at which they grow from there."""

    run_s: list[float]
    since_s: float
    runnable: bool = False
    """Whether the host's scheduler has the vCPU."""
    rates: tuple[Rate, ...] = ()
    throttled_ratio: float = 0.0
    wait_s: float = 0.0
    throttled_s: float = 0.0
    instructions: float = 0.0
    cycles: float = 0.0
    cache_misses: float = 0.0


class Program(Protocol):
    """Decides when vCPUs wait, and how much work they do next."""

    together: bool
    """Whether they wait for each other, which a hypervisor's scheduler sees as running."""
    spins: bool
    """Whether they wait busily."""

    def reached(self, vcpu: "SimVcpu", now_s: float) -> "Iterable[SimVcpu]":
        """A vCPU reached its target, or its wait ends: returns those that start or stop running."""
        ...


@dataclass(slots=True)
class GuestWork:
    """What a vCPU does, and how far it is, in seconds alone on the slowest core type."""

    behaviour: "Behaviour"
    full_speed_s: list[float]
    """CPU time by core type, less what busy siblings and slow clocks cost."""
    program: Program | None = None
    target_ref_s: float = math.inf
    """Progress at which its program decides what comes next."""
    progress_ref_s: float = 0.0
    waits_until_s: float | None = None
    """When its wait ends; infinity: it waits for other vCPUs; ``None``: it does not wait."""
    done: bool = False
    version: int = 0
    """Which forecast of reaching the target is the latest one."""

    @property
    def blocked(self) -> bool:
        """Whether it waits for something else than a pCPU."""
        return self.waits_until_s is not None


class SimVcpu:
    """A vCPU of a simulated guest."""

    def __init__(
        self,
        guest: "SimGuest",
        behaviour: "Behaviour",
        index: int,
        order: int,
        pcpus: frozenset[int],
    ) -> None:
        """``order`` in which vCPUs were started breaks ties repeatably."""
        self.guest = guest
        self.key = (guest.guest.name, index)
        self.order = order
        self.pcpus = pcpus
        self.pcpu: int | None = None
        self.bandwidth: Bandwidth | None = None
        self.limit_cores = 1.0
        self.moves = Moves()
        types = len(behaviour.rates)
        self.counters = VcpuCounters([0.0] * types, guest.started_s)
        self.work = GuestWork(behaviour, [0.0] * types)

    @property
    def weight(self) -> float:
        """Its part of the guest's CPU weight, which the kernel divides among those that run."""
        return self.guest.cpu_weight / max(1, self.guest.runnable)

    @property
    def wants(self) -> bool:
        """Whether it has something to run."""
        work = self.work
        if work.done or not work.behaviour.turn.wants:
            return False
        return work.waits_until_s is None or (work.program is not None and work.program.spins)

    @property
    def speed(self) -> float:
        """Speed of its work now, over that on the slowest core type."""
        speeds = self.work.behaviour.turn.speeds
        return sum(r.cores * r.kept_ratio * speeds[r.position] for r in self.counters.rates)

    def accrue(self, now_s: float) -> None:
        """Bring the counters up to date, at the rates since the last time."""
        counters = self.counters
        passed = now_s - counters.since_s
        counters.since_s = now_s
        if not counters.runnable or passed <= 0.0:
            return
        work = self.work
        behaviour = work.behaviour
        speeds, gains = behaviour.turn.speeds, behaviour.rates
        cycles_noise, misses_noise = behaviour.model.noise()
        runs = speed = 0.0
        for at, share, kept, clock in counters.rates:
            ran_s, gain = share * passed, gains[at]
            counters.run_s[at] += ran_s
            work.full_speed_s[at] += ran_s * kept
            counters.instructions += gain.instructions * ran_s * kept
            counters.cycles += gain.cycles * ran_s * clock * cycles_noise
            counters.cache_misses += gain.cache_misses * ran_s * kept * misses_noise
            runs += share
            speed += share * kept * speeds[at]
        if runs < 1.0:
            counters.wait_s += (1.0 - runs) * passed
            counters.throttled_s += counters.throttled_ratio * passed
        if work.waits_until_s is None:
            work.progress_ref_s += speed * passed

    def take(self, share: RunningShare, rates: tuple[Rate, ...]) -> None:
        """Run with another share from now on, at these ``rates``."""
        self.counters.rates = rates
        self.counters.throttled_ratio = share.throttled_ratio

    def reading(self, allowed: frozenset[int]) -> VcpuReading:
        """Its counters and limits as a Sensor shows them."""
        counters, counts = self.counters, None
        if self.work.behaviour.model.works:
            counts = Counts(
                round(counters.instructions), round(counters.cycles), round(counters.cache_misses)
            )
        return VcpuReading(
            self.key[1],
            round(sum(counters.run_s) * 1e9),
            round(counters.wait_s * 1e9),
            round(counters.throttled_s * 1e9),
            self.bandwidth,
            self.pcpus,
            allowed,
            self.pcpu,
            counts,
        )

    def sample(self, now_s: float) -> VcpuSample:
        """Its CPU time and instructions as a Sensor shows them between cycles."""
        counters = self.counters
        ran_ns, waited_ns = round(sum(counters.run_s) * 1e9), round(counters.wait_s * 1e9)
        return VcpuSample(round(now_s * 1e9), ran_ns, waited_ns, round(counters.instructions))

    def meter(self) -> Meter:
        """Its counters as the result needs them."""
        counters = self.counters
        return Meter(
            tuple(counters.run_s),
            counters.wait_s,
            counters.throttled_s,
            self.work.progress_ref_s,
            counters.instructions,
            tuple(self.work.full_speed_s),
        )


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
        self.chance = random.Random(f"{seed} {guest.name}")
        self.behaviours: list[Behaviour] = []
        vcpus = len(guest.booking.vcpus)
        workloads = guest.workload.different(vcpus)
        for number, workload in enumerate(workloads):
            name = f"{guest.name} {number}" if number else guest.name
            model = CounterModel(topology, counting, name, workload.ipc)
            shift_s = self.chance.uniform(0.0, CYCLE_S)
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
