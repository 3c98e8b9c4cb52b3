# SPDX-License-Identifier: Apache-2.0
"""Capacity that is idle now, because vCPUs sleep or do not use their bookings.

When the vCPU that was placed on a fast core goes to sleep, the core idles; when a vCPU without a
place wakes up, it has to share one. Until the policy's next decision, the core would be wasted.
Best effort may also use what a booking leaves unused. A booked vCPU that wakes up gets its time
back from the kernel at once, so this only decides where best effort is placed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.control.entitlement import Entitlement
from amp_nova.model.observation import VcpuKey, VcpuReading
from amp_nova.model.topology import Topology
from amp_nova.policies.placing.core_shares import ACTIVE_MIN_RATIO

SPAN_S = 0.9
"""Demand is measured over at least this time: a shorter pause moves nothing."""
BUSY_LEAST_RATIO = 0.75
"""A vCPU that wanted to run for at least this share of the time could use a faster core."""
WAIT_LEAST_RATIO = 0.2
"""A vCPU without a place that waited for at least this share of the time needs one."""
USUAL_S = 30.0
"""Time constant with which the usual use of a booking falls; it rises at once."""
BACK_LEAST_RATIO = 0.2
"""A booked vCPU is awake again if it wants to run for at least this share of the time. Less is what
idle guests do."""
WORTH_LEAST_CORES = 0.25
"""A vCPU with a smaller booking leaves too little to justify an extra decision when it sleeps."""

Places = Mapping[VcpuKey, frozenset[int]]
Readings = Mapping[VcpuKey, VcpuReading]


@dataclass(frozen=True, slots=True)
class RecentDemand:
    """Demand over about the last second, as shares of time.

    ``demand_ratios``: in which a vCPU wanted to run; ``wait_ratios``: in which it waited.
    ``marks``: the last two observations from which demand can be measured, newest first.
    """

    marks: tuple[tuple[int, Readings], ...] = ()
    demand_ratios: Mapping[VcpuKey, float] = field(default_factory=dict)
    wait_ratios: Mapping[VcpuKey, float] = field(default_factory=dict)

    def asleep(self, key: VcpuKey) -> bool:
        """Whether a vCPU hardly wanted to run; false if its demand is unknown."""
        return self.demand_ratios.get(key, 1.0) < ACTIVE_MIN_RATIO

    def after(self, now_ns: int, readings: Readings) -> "RecentDemand":
        """The demand as of the observation at ``now_ns``."""
        marks = self.marks
        if any(time_ns > now_ns for time_ns, _ in marks):  # the clock went back
            marks = ()
        old = tuple(m for m in marks if now_ns - m[0] >= SPAN_S * 1e9)
        demand_ratios, wait_ratios = _measured(old[0], now_ns, readings) if old else ({}, {})
        if old == marks:
            marks = ((now_ns, readings), *marks[:1])
        return RecentDemand(marks, demand_ratios, wait_ratios)


def _measured(
    since: tuple[int, Readings], now_ns: int, readings: Readings
) -> tuple[dict[VcpuKey, float], dict[VcpuKey, float]]:
    since_ns, earlier = since
    passed_ns = now_ns - since_ns
    demand_ratios, wait_ratios = {}, {}
    for key, now in readings.items():
        before = earlier.get(key)
        if before is not None and now.run_ns >= before.run_ns:
            wait_ns = max(0, now.wait_ns - before.wait_ns)
            demand_ratios[key] = (now.run_ns - before.run_ns + wait_ns) / passed_ns
            wait_ratios[key] = wait_ns / passed_ns
    return demand_ratios, wait_ratios


@dataclass(frozen=True, slots=True)
class BookedUse:
    """How much of their bookings vCPUs used, as of the policy's last decision.

    ``cores``: the usual use by vCPU, as a share of its pCPU; ``asleep``: the vCPUs that slept;
    ``awake``: the pCPU of each other vCPU with a large booking.
    """

    cores: Mapping[VcpuKey, float] = field(default_factory=dict)
    asleep: frozenset[VcpuKey] = frozenset()
    awake: Places = field(default_factory=dict)

    def back(self, demand: RecentDemand) -> bool:
        """Whether a vCPU that slept at the last decision wants to run again."""
        return any(demand.demand_ratios.get(key, 0.0) >= BACK_LEAST_RATIO for key in self.asleep)


def overtaken(
    demand: RecentDemand, use: BookedUse, topology: Topology, places: Places, movable: Places
) -> bool:
    """Whether demand has changed so much that the policy should decide again.

    ``places``: the pCPUs of the vCPUs that it placed; ``movable``: the allowed pCPUs of every vCPU
    that it may place.
    """
    if use.back(demand):
        return True
    placed = {**places, **use.awake}
    unplaced = movable.keys() - placed.keys()
    if any(demand.wait_ratios.get(key, 0.0) >= WAIT_LEAST_RATIO for key in unplaced):
        return True
    sleepers = [key for key in placed if demand.asleep(key)]
    left = {at for key in sleepers if (at := topology.position(placed[key])) is not None}
    if not left:
        return False
    for key in placed.keys() & movable.keys():
        at = topology.position(placed[key])
        if at is None or demand.demand_ratios.get(key, 0.0) < BUSY_LEAST_RATIO:
            continue
        faster = (topology.core_types[f].name for f in left if f > at)
        if any(movable[key] & topology.pcpus_of(name) for name in faster):
            return True
    return False


def booked_use(
    before: BookedUse,
    entitlements: Mapping[VcpuKey, Entitlement],
    demand_ratios: Mapping[VcpuKey, float],
    demand: RecentDemand,
    elapsed_s: float,
) -> BookedUse:
    """The use of bookings now.

    ``demand_ratios``: share of the time since the last decision in which each vCPU wanted to run;
    ``elapsed_s``: that time.
    """
    cores, awake = {}, {}
    asleep = set()
    for key, entitlement in entitlements.items():
        home = entitlement.home
        if home.pcpu is None or home.cores is None:
            continue
        usual = before.cores.get(key, home.cores)
        recent = max(demand_ratios.get(key, home.cores), demand.demand_ratios.get(key, 0.0))
        now = min(home.cores, recent)
        slowly = usual + min(1.0, elapsed_s / USUAL_S) * (now - usual)
        cores[key] = min(home.cores, max(now, slowly))
        if demand.asleep(key):
            asleep.add(key)
        elif home.cores >= WORTH_LEAST_CORES:
            awake[key] = frozenset({home.pcpu})
    return BookedUse(cores, frozenset(asleep), awake)
