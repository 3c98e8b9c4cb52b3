# SPDX-License-Identifier: Apache-2.0
"""Cumulative counters as a ``Sensor`` reads them, and the difference between two readings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec import Struct

from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.topology import Topology

VcpuKey = tuple[str, int]
"""An instance's UUID and the index of the vCPU."""


class Counts(Struct, frozen=True):
    """A vCPU's performance counters, cumulative since they were opened.

    On a machine with one PMU per core type, each value is the sum over all PMUs, never scaled by
    time enabled over time running. Values smaller than before mean that the counters were opened
    again.
    """

    instructions: int
    cycles: int | None = None
    cache_misses: int | None = None
    """Last-level cache misses."""
    run_ns: int | None = None
    """CPU time of the thread when these were read; ``None`` if only ``schedstat`` has it, which
    lags by up to a timer tick."""


TAMPERED = "tampered with"
"""How ``uncounted`` begins if a vCPU's cgroup holds other threads, too: QEMU started them there."""


class VcpuReading(Struct, frozen=True):
    """One vCPU: counters since its thread started, and the limits in force.

    ``wait_ns``: the time it was runnable but did not run, including the throttled time, which
    ``throttled_ns`` gives separately. ``pcpus``: its affinity; ``allowed``: the pCPUs that Nova,
    libvirt and its cpuset permit.
    """

    index: int
    run_ns: int
    wait_ns: int
    throttled_ns: int
    bandwidth: Bandwidth | None
    pcpus: frozenset[int]
    allowed: frozenset[int]
    last_pcpu: int | None = None
    """The pCPU it last ran on, if that is known."""
    counts: Counts | None = None
    """``None``: its instructions are not counted; ``uncounted`` says why."""
    uncounted: str | None = None


class VcpuSample(Struct, frozen=True):
    """The CPU time of a vCPU and its instructions, read together between two cycles."""

    time_ns: int
    run_ns: int
    wait_ns: int
    instructions: int


@dataclass(frozen=True, slots=True)
class Domain:
    """The properties of a domain, constant between two life-cycle events.

    ``specs``: its flavor's extra specs, empty if there are none; ``flavor_id`` and ``image``: the
    Nova IDs of its flavor and image; ``incarnation`` changes when the counters start again (a new
    QEMU process); ``limited_elsewhere``: its libvirt definition sets a quota, so amp-nova must not;
    ``weighted_elsewhere``: its definition sets CPU shares; ``problem``: why its booking cannot be
    read. ``vcpus`` are as many as it may ever have; ``unplugged`` are those of them that do not
    exist at present. ``booking_unknown``: the Nova that started it does not say what its flavor
    books, and neither does the configuration.
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
    unplugged: frozenset[int] = frozenset()
    booking_unknown: bool = False

    @property
    def plugged(self) -> int:
        """How many vCPUs exist at present."""
        return self.vcpus - len(self.unplugged)


class DomainReading(Struct, frozen=True):
    """One domain at one moment; ``vcpus`` holds those that could be read.

    ``failure``: why the others could not be read, ``None`` without a failure. ``cpu_weight``:
    that of its cgroup (``model.cpu_weight``); ``None`` if the agent must not change it.
    ``bursts_us``: CPU time that vCPUs may save up beyond their quota (``cpu.max.burst``), for those
    vCPUs where it is not 0. ``allowed``: the pCPUs that its definition and cpusets permit to each
    vCPU, read or not. ``realtime``: the vCPUs that a real-time class schedules, to which no
    bandwidth limit applies. ``ceilings``: the limits of the groups above those of its vCPUs, the
    nearest first, by the group's name. ``sandboxed``: whether a seccomp filter keeps its QEMU from
    changing its own affinity, as libvirt asks for by default.
    """

    domain: Domain
    vcpus: tuple[VcpuReading, ...]
    failure: str | None = None
    cpu_weight: int | None = None
    bursts_us: Mapping[int, int] = MappingProxyType({})
    allowed: Mapping[int, frozenset[int]] = MappingProxyType({})
    realtime: frozenset[int] = frozenset()
    ceilings: tuple[tuple[str, Bandwidth], ...] = ()
    sandboxed: bool = True


@dataclass(frozen=True, slots=True)
class Observation:
    """The host at one moment.

    ``paused``: instances that must not be changed, and why. ``inactive``: domains that are defined
    but not running, as those of stopped or suspended instances and of resized ones at their source.
    ``usable``: the pCPUs where the cpuset of all guests lets new ones run, ``None`` for all.
    ``idle_ns``: the time that each online pCPU has been idle; empty where siblings cost nothing.
    """

    time_ns: int
    topology: Topology
    domains: tuple[DomainReading, ...]
    paused: Mapping[str, str] = field(default_factory=dict)
    inactive: tuple[DomainReading, ...] = ()
    usable: frozenset[int] | None = None
    idle_ns: Mapping[int, int] = field(default_factory=dict)


class Usage(Struct, frozen=True):
    """What one vCPU did between two readings, in seconds of wall time."""

    wall_s: float
    run_s: float
    wait_s: float
    throttled_s: float
    clock_hz: float | None = None
    """Cycles per second of CPU time; ``None`` if cycles are not counted."""
    siblings_busy_ratio: float = 0.0
    """The share of time in which another hardware thread of its core was busy."""
    instructions: float | None = None
    """``None`` if they are not counted."""

    @property
    def demand_s(self) -> float:
        """Time in which it wanted a pCPU: it ran, waited, or was throttled."""
        return min(self.wall_s, self.run_s + self.wait_s)

    @property
    def contention_s(self) -> float:
        """Time in which it waited while others had the pCPU."""
        return max(0.0, self.wait_s - self.throttled_s)


def usage(before: VcpuReading, after: VcpuReading, wall_ns: int) -> Usage | None:
    """The difference between two readings; ``None`` if a counter or the clock went backwards."""
    run_ns = after.run_ns - before.run_ns
    wait_ns = after.wait_ns - before.wait_ns
    throttled_ns = after.throttled_ns - before.throttled_ns
    if wall_ns <= 0 or min(run_ns, wait_ns, throttled_ns) < 0:
        return None
    clock_hz = instructions = None
    was, now = before.counts, after.counts
    if was is not None and now is not None:
        clock_hz = _clock_hz(was.cycles, now.cycles, run_ns)
        counted = now.instructions - was.instructions
        instructions = None if counted < 0 else float(counted)
    times_s = wall_ns / 1e9, run_ns / 1e9, wait_ns / 1e9, throttled_ns / 1e9
    return Usage(*times_s, clock_hz, instructions=instructions)


def _clock_hz(was: int | None, now: int | None, run_ns: int) -> float | None:
    if was is None or now is None or now <= was or run_ns <= 0:
        return None
    return (now - was) / (run_ns / 1e9)
