"""Raw cumulative counters of one moment, as a Sensor reads them; and the difference of two."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.topology import Topology

VcpuKey = tuple[str, int]
"""An instance's UUID and the index of the vCPU."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a vCPU's performance counters said, cumulative since they were opened.

    On a machine whose core types have counters of their own these are the sums over all of them,
    never scaled by enabled over running time; ``residency_ns`` then is the time each set of
    counters ran, by the name of its PMU: how long the vCPU was on cores of that type. Counts
    smaller than before mean that the counters began anew.
    """

    instructions: int
    cycles: int | None = None
    cache_misses: int | None = None
    """Last-level cache misses."""
    residency_ns: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class VcpuReading:
    """One vCPU: counters since its thread began, and the limits in force.

    ``wait_ns`` is all the time it was runnable and did not run, throttled time included, which
    ``throttled_ns`` gives apart. ``allowed``: the pCPUs that Nova and libvirt leave it.
    """

    index: int
    run_ns: int
    wait_ns: int
    throttled_ns: int
    bandwidth: Bandwidth | None
    pcpus: frozenset[int]
    allowed: frozenset[int]
    last_pcpu: int | None = None
    """The pCPU it last ran on, where that is known."""
    counts: Counts | None = None
    """``None``: nothing counts its instructions, because of ``uncounted``."""
    uncounted: str | None = None


class Sample(NamedTuple):
    """One vCPU in the fast loop: just what a controller of Ips needs, at ``time_ns``."""

    time_ns: int
    run_ns: int
    wait_ns: int
    instructions: int


@dataclass(frozen=True, slots=True)
class Domain:
    """What a domain is, constant between two life-cycle events.

    ``specs``: its flavor's extra specs, empty when it carries none; ``flavor_id`` and ``image`` are
    Nova's ids of what it was made from; ``incarnation`` changes when
    the counters start again (a new QEMU process); ``limited_elsewhere``: its definition has a
    quota of its own, so it is not ours to limit, ``weighted_elsewhere`` CPU shares of its own;
    ``problem``: why its booking cannot be read.
    """

    resource: str
    name: str
    vcpus: int
    specs: Mapping[str, str] = field(default_factory=dict)
    incarnation: str = ""
    project: str = ""
    display_name: str = ""
    flavor: str = ""
    flavor_id: str = ""
    image: str = ""
    limited_elsewhere: bool = False
    weighted_elsewhere: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class DomainReading:
    """One domain at this moment; ``vcpus`` holds those that could be read.

    ``idle``: whether it runs in the idle class (``cpu.idle``); ``None``: not ours to say.
    ``bursts_us``: CPU time that vCPUs may save up beyond their quota (``cpu.max.burst``), where
    that is not 0.
    """

    domain: Domain
    vcpus: tuple[VcpuReading, ...]
    failure: str | None = None
    idle: bool | None = None
    bursts_us: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """The host at one moment. ``paused``: instances not to be changed, and why."""

    time_ns: int
    topology: Topology
    domains: tuple[DomainReading, ...]
    paused: Mapping[str, str] = field(default_factory=dict)


class Usage(NamedTuple):
    """What one vCPU did between two readings, in seconds of wall time."""

    wall_s: float
    run_s: float
    wait_s: float
    throttled_s: float
    clock_hz: float | None = None
    """Cycles per second of CPU time; ``None`` where cycles are not counted."""
    siblings_busy_ratio: float = 0.0
    """How likely some other hardware thread of its core was busy."""
    instructions: float | None = None
    """``None``: not counted."""

    @property
    def demand_s(self) -> float:
        """Time it wanted a pCPU: ran, waited for one, or was throttled."""
        return min(self.wall_s, self.run_s + self.wait_s)

    @property
    def contention_s(self) -> float:
        """Time others had the pCPU it wanted."""
        return max(0.0, self.wait_s - self.throttled_s)


def usage(before: VcpuReading, after: VcpuReading, wall_ns: int) -> Usage | None:
    """The difference of two readings; ``None`` when counters or the clock went backwards."""
    run_ns = after.run_ns - before.run_ns
    wait_ns = after.wait_ns - before.wait_ns
    throttled_ns = after.throttled_ns - before.throttled_ns
    if wall_ns <= 0 or run_ns < 0 or wait_ns < 0 or throttled_ns < 0:
        return None
    return Usage(
        wall_ns / 1e9,
        run_ns / 1e9,
        wait_ns / 1e9,
        throttled_ns / 1e9,
        _clock_hz(before, after, run_ns),
        instructions=_instructions(before, after),
    )


def _clock_hz(before: VcpuReading, after: VcpuReading, run_ns: int) -> float | None:
    was = before.counts.cycles if before.counts else None
    now = after.counts.cycles if after.counts else None
    if was is None or now is None or now <= was or run_ns <= 0:
        return None
    return (now - was) / (run_ns / 1e9)


def _instructions(before: VcpuReading, after: VcpuReading) -> float | None:
    if before.counts is None or after.counts is None:
        return None
    counted = after.counts.instructions - before.counts.instructions
    return None if counted < 0 else float(counted)
