"""One guest in the simulator: its vCPUs' counters and progress, and what it would do alone."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from amp_nova.core.capacity import Bandwidth
from amp_nova.core.observation import Domain, VcpuReading
from amp_nova.sim.cores import Share
from amp_nova.sim.scenario import Guest
from amp_nova.sim.workload import Turn, turns


@dataclass(frozen=True, slots=True)
class Meter:
    """What one vCPU did since it was started. ``run_s`` by core type, slowest first."""

    run_s: tuple[float, ...]
    wait_s: float
    throttled_s: float
    progress_ref_s: float


class SimVcpu:
    """A vCPU's place and counters; constant rates since ``since_s``."""

    __slots__ = (
        "allowed",
        "bandwidth",
        "blocked",
        "cross_llc_migrations",
        "done",
        "guest",
        "index",
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
        speeds = self.guest.turn.speeds
        runs = speed = 0.0
        for at, share in self.rates:
            self.run_s[at] += share * passed
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
        )

    def meter(self) -> Meter:
        """Its counters as the result needs them."""
        return Meter(tuple(self.run_s), self.wait_s, self.throttled_s, self.progress_ref_s)


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


class SimGuest:
    """A guest on the simulated host."""

    def __init__(self, guest: Guest, started_s: float, shift_s: float, types: int) -> None:
        self.guest = guest
        self.domain = Domain(guest.name, guest.name, len(guest.booking.vcpus), guest.specs)
        self.started_s = started_s
        self.completed_s: float | None = None
        self.yields = False
        self.vcpus: list[SimVcpu] = []
        self.alone_slowest = Alone(0, guest.workload.work_ref_s)
        self.alone_fastest = Alone(types - 1, guest.workload.work_ref_s)
        self._turns: Iterator[Turn] = turns(guest.workload, shift_s)
        self._since_s = started_s
        self._barriers = 0
        self.turn = next(self._turns)
        self.upcoming = next(self._turns, None)

    def next_turn(self, now_s: float) -> None:
        """Change behaviour; the vCPUs' counters must be up to date."""
        assert self.upcoming is not None
        self.accrue(now_s)
        self.turn = self.upcoming
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
