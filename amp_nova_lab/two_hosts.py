# SPDX-License-Identifier: Apache-2.0
"""The demonstration: the same guests on two hosts, one with amp-nova and one without.

Four acts on two fast and two slow cores: two guests of one flavor on different core types, beside a
guest with a vCPU on each; a guest that needs a whole fast core; one that needs a whole slow core;
and neighbours without bookings that take all they can get.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from amp_nova.agent.cycle import Cycle, VcpuRecord
from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.flavor.extra_specs import Booking, best_effort, parse
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova_lab.host import SimHost
from amp_nova_lab.report import WINDOW_S, Windows
from amp_nova_lab.scenarios.scenario import Guest
from amp_nova_lab.scenarios.workload import Phase, Workload

FAST = CoreType("fast", 2.0, "demo")
SLOW = CoreType("slow", 1.0, "demo")
TOPOLOGY = Topology(
    (SLOW, FAST),
    tuple(PCpu(i, t.name, (i,), llc=0) for i, t in enumerate((FAST, FAST, SLOW, SLOW))),
    SLOW.name,
    "demo",
)
TOLERANCE_RATIO = 0.01
"""How far the delivered ratio of any second may be from 1."""
TWINS = ("web-1", "web-2")
"""Two guests of one flavor that start on different core types."""


def _guest(name: str, start_on: str | None = None, vcpus: int = 1, **specs: str) -> Guest:
    named = {f"amp:{key.replace('__', '.')}": value for key, value in specs.items()}
    workload = Workload((Phase((1.0, 2.0)),))
    return Guest(name, parse(named, vcpus), workload, named, start_on)


@dataclass(frozen=True, slots=True)
class Act:
    """What happens, in words and as guests that arrive and leave."""

    title: str
    arrive: tuple[Guest, ...] = ()
    leave: tuple[str, ...] = ()


ACTS = (
    Act(
        "web-1 and web-2 have the same flavor and start on different core types; "
        "db books 1.6 and 0.4 refcores",
        (
            _guest("web-1", "fast", pref_core="0.5"),
            _guest("web-2", "slow", pref_core="0.5"),
            _guest("db", vcpus=2, pref_core__0="1.6", pref_core__1="0.4"),
        ),
    ),
    Act(
        "batch arrives and needs a whole fast core, so web-1 has to move to a slow one",
        (_guest("batch", pref_core="2"),),
    ),
    Act(
        "batch leaves; etl arrives and needs a whole slow core, so db/1 has to move to a fast one",
        (_guest("etl", pref_core="1", core_type="slow"),),
        ("batch",),
    ),
    Act(
        "etl leaves; noise arrives, three vCPUs without a booking that take all they can get",
        (_guest("noise", vcpus=3),),
        ("etl",),
    ),
)


@dataclass(frozen=True, slots=True)
class VcpuRow:
    """One vCPU in the last second."""

    booked_refcores: float | None
    delivered_refcores: float
    ratio: float | None
    core_type: str
    quota_cores: float | None


class Side:
    """One of the two hosts, its control loop and what its vCPUs got."""

    def __init__(self, *, enforce: bool) -> None:
        self._enforce = enforce
        self._host = SimHost(TOPOLOGY)
        self._loop = Loop(self._host, self._host, LoopSettings(dry_run=not enforce))
        self._booked: dict[VcpuKey, float | None] = {}
        self._windows: dict[VcpuKey, Windows] = {}
        self._ref_s: dict[VcpuKey, float] = {}
        self.cycles: tuple[Cycle, ...] = ()
        """Those of the last second: two if guests arrived or left, else one."""
        self.rows: dict[VcpuKey, VcpuRow] = {}
        self.ratios: dict[VcpuKey, list[float]] = {}
        """Delivered ratio of every booked vCPU, second by second."""

    def _begin(self, act: Act) -> Cycle:
        """Let guests leave and arrive; as on a real host, a cycle starts at once."""
        for name in act.leave:
            self._host.remove(name)
        for guest in act.arrive:
            for vcpu in guest.booking.vcpus:
                key = (guest.name, vcpu.index)
                self._booked[key] = vcpu.refcores
                self._windows[key] = Windows(Booking((vcpu,)), TOPOLOGY)
                self._ref_s[key] = 0.0
            # Without amp-nova the host does not know about the booking.
            plain = replace(guest, specs={}, booking=best_effort(len(guest.booking.vcpus)))
            self._host.add(guest if self._enforce else plain)
        return self._loop.cycle()

    def second(self, act: Act | None) -> None:
        """Let a second pass, run a cycle and measure; ``act``: what begins with this second."""
        begun = (self._begin(act),) if act else ()
        self._host.advance(self._host.now_s + WINDOW_S)
        report = self._loop.cycle()
        self.cycles = (*begun, report)
        self.rows = {
            (key := (d.domain.resource, v.reading.index)): self._row(key, v)
            for d in report.domains
            for v in d.vcpus
        }

    def _row(self, key: VcpuKey, vcpu: VcpuRecord) -> VcpuRow:
        meter = self._host.meters(key[0])[key[1]]
        window, reading = self._windows[key], vcpu.reading
        window.close((meter,), WINDOW_S)
        if window.last is not None:
            self.ratios.setdefault(key, []).append(window.last)
        types = TOPOLOGY.core_types
        total = sum(s * (t.coefficient or 0.0) for s, t in zip(meter.run_s, types, strict=True))
        delivered, self._ref_s[key] = total - self._ref_s[key], total
        on = TOPOLOGY.type_of(reading.last_pcpu) if reading.last_pcpu is not None else None
        return VcpuRow(
            self._booked[key],
            delivered / WINDOW_S,
            window.last,
            on.name if on else "-",
            reading.bandwidth.cores if reading.bandwidth else None,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the run showed.

    ``error_ratio``: the greatest distance of a delivered ratio from 1. ``twins_ratio``: how much
    faster one of the twins ran than the other in the first act. ``least`` and ``most``: extreme
    delivered ratios on the host without amp-nova.
    """

    error_ratio: float
    twins_ratio: float
    least: float
    most: float
    moves: int

    @property
    def delivered(self) -> bool:
        """Whether every booking was delivered, in every second."""
        return self.error_ratio <= TOLERANCE_RATIO

    @property
    def error_percent(self) -> float:
        """``error_ratio`` in percent, rounded up to a tenth."""
        # Rounded up, so that the claim is never better than the measurement.
        return max(0.1, math.ceil(self.error_ratio * 1000 - 1e-6) / 10)

    def __str__(self) -> str:
        without = (
            f"without it the same flavor ran {self.twins_ratio:.1f} times as fast on a fast core, "
            f"and guests got {self.least:.2f} to {self.most:.2f} times what they booked."
        )
        if not self.delivered:
            return (
                f"Bookings were NOT delivered: with amp-nova one was missed by "
                f"{self.error_ratio * 100:.1f} %; {without}"
            )
        return (
            f"With amp-nova every booking was delivered within {self.error_percent:g} % "
            f"on fast and slow cores, through {self.moves} moves between them; {without}"
        )


class Show:
    """Both hosts in step: ``kept`` with amp-nova, ``bare`` without."""

    def __init__(self, acts_s: int) -> None:
        """``acts_s``: seconds an act lasts."""
        self.kept = Side(enforce=True)
        self.bare = Side(enforce=False)
        self.act = ACTS[0]
        self.now_s = 0
        self.duration_s = acts_s * len(ACTS)
        self._acts_s = acts_s
        self.history: list[tuple[Mapping[VcpuKey, VcpuRow], Mapping[VcpuKey, VcpuRow]]] = []
        """The rows of both hosts, second by second."""

    @property
    def ends_act(self) -> bool:
        """Whether the last second was the last one of its act."""
        return self.now_s % self._acts_s == 0

    def second(self) -> bool:
        """Let a second pass on both hosts; ``False`` at the end of the show."""
        if self.now_s >= self.duration_s:
            return False
        begins = self.ends_act
        if begins:
            self.act = ACTS[self.now_s // self._acts_s]
        for side in (self.kept, self.bare):
            side.second(self.act if begins else None)
        self.now_s += 1
        self.history.append((self.kept.rows, self.bare.rows))
        return True

    def verdict(self) -> Verdict:
        """What the seconds so far have shown."""
        kept = [r for ratios in self.kept.ratios.values() for r in ratios]
        bare = [r for ratios in self.bare.ratios.values() for r in ratios]
        # Both twins booked for the whole act, so the ratio of sums is that of means.
        first, second = (sum(self.bare.ratios[name, 0][: self._acts_s]) for name in TWINS)
        return Verdict(
            error_ratio=max(abs(r - 1.0) for r in kept),
            twins_ratio=first / second,
            least=min(bare),
            most=max(bare),
            moves=sum(self.kept.cycles[-1].totals.migrations.values()),
        )
