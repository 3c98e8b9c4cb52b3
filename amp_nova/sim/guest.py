"""One guest in the simulator: its vCPUs' counters and progress, and what it would do alone."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Counts, Domain, Sample, VcpuReading
from amp_nova.sim.cores import Share
from amp_nova.sim.counters import Hardware, Rates
from amp_nova.sim.scenarios.scenario import Guest
from amp_nova.sim.scenarios.workload import Turn, turns


@dataclass(frozen=True, slots=True)
class Meter:
    """What one vCPU did since it was started. ``run_s`` by core type, slowest first."""

    run_s: tuple[float, ...]
    wait_s: float
    throttled_s: float
    progress_ref_s: float
    instructions: float = 0.0


class SimVcpu:
    """A vCPU's place and counters; constant rates since ``since_s``."""

    __slots__ = (
        "allowed",
        "bandwidth",
        "blocked",
        "cache_misses",
        "cross_llc_migrations",
        "cycles",
        "done",
        "guest",
        "index",
        "instructions",
        "limit_cores",
        "migrations",
        "order",
        "pcpu",
        "pcpus",
        "progress_ref_s",
        "rates",
        "run_s",
        "runs",
        "since_s",
        "target_ref_s",
        "throttled_ratio",
        "throttled_s",
        "version",
        "wait_s",
    )

    def __init__(
        self, guest: "SimGuest", index: int, order: int, pcpus: frozenset[int], types: int
    ) -> None:
        self.guest = guest
        self.index = index
        self.order = order
        self.allowed = pcpus
        self.pcpus = pcpus
        self.pcpu: int | None = None
        self.bandwidth: Bandwidth | None = None
        self.limit_cores = 1.0
        self.migrations = 0
        self.cross_llc_migrations = 0
        self.runs = False
        self.blocked = False
        self.done = False
        self.rates: tuple[tuple[int, float], ...] = ()
        self.throttled_ratio = 0.0
        self.since_s = guest.started_s
        self.run_s = [0.0] * types
        self.wait_s = 0.0
        self.throttled_s = 0.0
        self.progress_ref_s = 0.0
        self.instructions = 0.0
        self.cycles = 0.0
        self.cache_misses = 0.0
        self.target_ref_s = guest.target_ref_s(0)
        self.version = 0

    @property
    def yields(self) -> bool:
        """Whether it runs in what others leave."""
        return self.guest.yields

    @property
    def wants(self) -> bool:
        """Whether it is runnable."""
        return self.guest.turn.wants and not self.done and not self.blocked

    @property
    def speed(self) -> float:
        """How fast its work goes on now, over the slowest core type."""
        speeds = self.guest.turn.speeds
        return sum(share * speeds[at] for at, share in self.rates)

    def accrue(self, now_s: float) -> None:
        """Bring the counters up to date, at the rates that held until now."""
        passed = now_s - self.since_s
        self.since_s = now_s
        if not self.runs or passed <= 0.0:
            return
        speeds, gains = self.guest.turn.speeds, self.guest.gains
        cycles_noise, misses_noise = self.guest.noise(), self.guest.noise()
        runs = speed = 0.0
        for at, share in self.rates:
            ran_s, gain = share * passed, gains[at]
            self.run_s[at] += ran_s
            self.instructions += gain.instructions * ran_s
            self.cycles += gain.cycles * ran_s * cycles_noise
            self.cache_misses += gain.cache_misses * ran_s * misses_noise
            runs += share
            speed += share * speeds[at]
        if runs < 1.0:
            self.wait_s += (1.0 - runs) * passed
            self.throttled_s += self.throttled_ratio * passed
        self.progress_ref_s += speed * passed

    def take(self, share: Share, type_of: dict[int, int]) -> None:
        """Run at other rates from now on."""
        self.throttled_ratio = share.throttled_ratio
        if len(share.cores) == 1:
            self.rates = tuple((type_of[p], cores) for p, cores in share.cores.items())
            return
        by_type: dict[int, float] = {}
        for pcpu, cores in share.cores.items():
            by_type[type_of[pcpu]] = by_type.get(type_of[pcpu], 0.0) + cores
        self.rates = tuple(by_type.items())

    def reading(self) -> VcpuReading:
        """Its counters as a host shows them."""
        return VcpuReading(
            self.index,
            round(sum(self.run_s) * 1e9),
            round(self.wait_s * 1e9),
            round(self.throttled_s * 1e9),
            self.bandwidth,
            self.pcpus,
            self.allowed,
            self.pcpu,
            self._counts(),
        )

    def _counts(self) -> Counts | None:
        names = self.guest.counted
        if not names:
            return None
        ran = tuple((name, round(s * 1e9)) for name, s in zip(names, self.run_s, strict=True))
        counted = round(self.instructions), round(self.cycles), round(self.cache_misses)
        return Counts(*counted, ran)

    def sample(self, now_s: float) -> Sample:
        """Its counters as the fast loop reads them."""
        ran_ns, waited_ns = round(sum(self.run_s) * 1e9), round(self.wait_s * 1e9)
        return Sample(round(now_s * 1e9), ran_ns, waited_ns, round(self.instructions))

    def meter(self) -> Meter:
        """Its counters as the result needs them."""
        return Meter(
            tuple(self.run_s),
            self.wait_s,
            self.throttled_s,
            self.progress_ref_s,
            self.instructions,
        )


class Alone:
    """What one vCPU of a guest would do with a core of some type to itself."""

    def __init__(self, position: int, work_ref_s: float | None) -> None:
        self._position = position
        self._work_ref_s = math.inf if work_ref_s is None else work_ref_s
        self._progress_ref_s = 0.0
        self._took_s = 0.0
        self._done = False

    def accrue(self, turn: Turn, passed_s: float) -> None:
        """Go on for a while, all in one turn."""
        if self._done:
            return
        rate = turn.speeds[self._position] if turn.wants else 0.0
        left = self._work_ref_s - self._progress_ref_s
        if rate * passed_s >= left:
            self._progress_ref_s, self._done = self._work_ref_s, True
            self._took_s += left / rate
        else:
            self._progress_ref_s += rate * passed_s
            self._took_s += passed_s

    @property
    def speed(self) -> float:
        """Mean speed while it had work."""
        return self._progress_ref_s / self._took_s if self._took_s else 0.0


@dataclass(frozen=True, slots=True)
class Counting:
    """How well a simulated host counts: not at all, exactly, or with chance in it.

    ``noise_ratio``: standard deviation of cycles and cache misses between two readings, over
    their mean; instructions are exact. The same ``seed`` and the same readings give the same noise.
    """

    works: bool = True
    noise_ratio: float = 0.0
    seed: int = 0


class SimGuest:
    """A guest on the simulated host."""

    def __init__(
        self, guest: Guest, started_s: float, shift_s: float, hardware: Hardware, counting: Counting
    ) -> None:
        self.guest = guest
        self.domain = Domain(guest.name, guest.name, len(guest.booking.vcpus), guest.specs)
        self.started_s = started_s
        self.completed_s: float | None = None
        self.yields = False
        self.vcpus: list[SimVcpu] = []
        self.alone_slowest = Alone(0, guest.workload.work_ref_s)
        self.alone_fastest = Alone(len(hardware.topology.core_types) - 1, guest.workload.work_ref_s)
        self._turns: Iterator[Turn] = turns(guest.workload, shift_s)
        self._since_s = started_s
        self._barriers = 0
        self._hardware = hardware
        self._counting = counting
        self._chance = random.Random(f"{counting.seed} {guest.name} counters")
        types = hardware.topology.core_types
        self.counted = tuple(t.name for t in types) if counting.works else ()
        self._gains: dict[tuple[tuple[float, ...], float], tuple[Rates, ...]] = {}
        self.turn = next(self._turns)
        self.gains = self._gains_now()
        self.upcoming = next(self._turns, None)

    def _gains_now(self) -> tuple[Rates, ...]:
        """What its counters gain in a second on every core type, as it behaves now."""
        how = self.turn.speeds, self.turn.ipc_ratio
        if how not in self._gains:
            ipc = self.guest.workload.ipc
            self._gains[how] = self._hardware.rates(how[0], ipc, how[1])
        return self._gains[how]

    def noise(self) -> float:
        """By how much a counter of it is off this time."""
        spread = self._counting.noise_ratio
        return max(0.0, self._chance.gauss(1.0, spread)) if spread else 1.0

    def next_turn(self, now_s: float) -> None:
        """Change behaviour; the vCPUs' counters must be up to date."""
        assert self.upcoming is not None
        self.accrue(now_s)
        self.turn = self.upcoming
        self.gains = self._gains_now()
        self.upcoming = next(self._turns, None)

    def accrue(self, now_s: float) -> None:
        """Bring what it would do alone up to date."""
        for alone in (self.alone_slowest, self.alone_fastest):
            alone.accrue(self.turn, now_s - self._since_s)
        self._since_s = now_s

    def target_ref_s(self, barriers: int) -> float:
        """Progress at which a vCPU that has passed so many barriers has to wait or is done."""
        workload = self.guest.workload
        barrier, work = workload.barrier_ref_s, workload.work_ref_s
        return min(
            math.inf if barrier is None else (barriers + 1) * barrier,
            math.inf if work is None else work,
        )

    def reached(self, vcpu: SimVcpu, now_s: float) -> list[SimVcpu]:
        """A vCPU came to its target: it is done or waits; returns those who may go on or stop."""
        vcpu.progress_ref_s = vcpu.target_ref_s
        if vcpu.target_ref_s == self.guest.workload.work_ref_s:
            vcpu.done = True
        else:
            vcpu.blocked = True
        if all(v.done for v in self.vcpus):
            self.completed_s = now_s
        if not all(v.done or v.blocked for v in self.vcpus):
            return [vcpu]
        self._barriers += 1
        for waiting in self.vcpus:
            waiting.blocked = False
            if not waiting.done:
                waiting.target_ref_s = self.target_ref_s(self._barriers)
        return self.vcpus
