"""Capacity that is idle now: of sleeping vCPUs, and of bookings that are not used.

A fast core idles when the vCPU it was given goes to sleep, and a vCPU that wakes up without a place
shares one. Waiting for the next decision of the policy would waste the core for an interval. And
what a booking does not use is best effort's to use: the kernel gives a booked vCPU its time back at
once, so all that is decided here is where best effort looks for time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.control.entitlement import Entitlement
from amp_nova.model.observation import VcpuKey, VcpuReading
from amp_nova.model.topology import Topology
from amp_nova.policies.placing.core_shares import ACTIVE_MIN_RATIO

SPAN_S = 0.9
"""Demand is taken over at least this time: nothing is moved for a shorter pause."""
BUSY_LEAST_RATIO = 0.75
"""A vCPU that wanted to run for this share of the time could use a faster core."""
WAIT_LEAST_RATIO = 0.2
"""A vCPU without a place that waited for this share of the time needs one."""
USUAL_S = 30.0
"""A booking that is used more counts at once; one that is used less, this much later."""
BACK_LEAST_RATIO = 0.2
"""A booked vCPU that wants to run for this share of the time is back; idle guests also wake up."""
WORTH_LEAST_CORES = 0.25
"""A booking below this leaves too little for a decision of its own when it falls asleep."""

Places = Mapping[VcpuKey, frozenset[int]]
Readings = Mapping[VcpuKey, VcpuReading]


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand over about the last second: shares of the time a vCPU wanted to run, and waited.

    ``marks``: the last two observations that demand is measured from, newest first.
    """

    marks: tuple[tuple[int, Readings], ...] = ()
    wanted: Mapping[VcpuKey, float] = field(default_factory=dict)
    waited: Mapping[VcpuKey, float] = field(default_factory=dict)

    def asleep(self, key: VcpuKey) -> bool:
        """Whether a vCPU did not want to run."""
        return self.wanted.get(key, 1.0) < ACTIVE_MIN_RATIO

    def after(self, now_ns: int, readings: Readings) -> "Demand":
        """Demand up to an observation."""
        marks = self.marks
        if any(time_ns > now_ns for time_ns, _ in marks):  # the clock went back
            marks = ()
        old = tuple(m for m in marks if now_ns - m[0] >= SPAN_S * 1e9)
        wanted, waited = _measured(old[0], now_ns, readings) if old else ({}, {})
        if old == marks:
            marks = ((now_ns, readings), *marks[:1])
        return Demand(marks, wanted, waited)


def _measured(
    since: tuple[int, Readings], now_ns: int, readings: Readings
) -> tuple[dict[VcpuKey, float], dict[VcpuKey, float]]:
    since_ns, earlier = since
    wanted, waited = {}, {}
    for key, now in readings.items():
        before = earlier.get(key)
        if before is not None and now.run_ns >= before.run_ns:
            wait_ns = max(0, now.wait_ns - before.wait_ns)
            wanted[key] = (now.run_ns - before.run_ns + wait_ns) / (now_ns - since_ns)
            waited[key] = wait_ns / (now_ns - since_ns)
    return wanted, waited


@dataclass(frozen=True, slots=True)
class BookedUse:
    """How much of their bookings vCPUs use, as of the last decision of the policy.

    ``cores``: as usual, by vCPU; ``asleep``: those that slept; ``awake``: the pCPU of each other
    one with a large booking.
    """

    cores: Mapping[VcpuKey, float] = field(default_factory=dict)
    asleep: frozenset[VcpuKey] = frozenset()
    awake: Places = field(default_factory=dict)

    def in_use(self, key: VcpuKey) -> float | None:
        """The share of a pCPU that best effort leaves to a booked vCPU; ``None``: not known."""
        return 0.0 if key in self.asleep else self.cores.get(key)

    def back(self, demand: Demand) -> bool:
        """Whether a vCPU that slept at the last decision wants to run again."""
        return any(demand.wanted.get(key, 0.0) >= BACK_LEAST_RATIO for key in self.asleep)


def overtaken(
    demand: Demand, use: BookedUse, topology: Topology, places: Places, movable: Places
) -> bool:
    """Whether a policy would hardly decide as it did.

    ``places``: the pCPUs of vCPUs that it placed; ``movable``: those that each vCPU it may place
    can use now.
    """
    if use.back(demand):
        return True
    placed = {**places, **use.awake}
    unplaced = movable.keys() - placed.keys()
    if any(demand.waited.get(key, 0.0) >= WAIT_LEAST_RATIO for key in unplaced):
        return True
    sleepers = [key for key in placed if demand.asleep(key)]
    left = {at for key in sleepers if (at := topology.position(placed[key])) is not None}
    if not left:
        return False
    for key in placed.keys() & movable.keys():
        at = topology.position(placed[key])
        if at is None or demand.wanted.get(key, 0.0) < BUSY_LEAST_RATIO:
            continue
        faster = (topology.core_types[f].name for f in left if f > at)
        if any(movable[key] & topology.pcpus_of(name) for name in faster):
            return True
    return False


def booked_use(
    before: BookedUse,
    entitlements: Mapping[VcpuKey, Entitlement],
    wanted: Mapping[VcpuKey, float],
    demand: Demand,
    elapsed_s: float,
) -> BookedUse:
    """The use of bookings now; ``wanted``: share of the time since the last decision."""
    cores, awake = {}, {}
    asleep = set()
    for key, entitlement in entitlements.items():
        home = entitlement.home
        if home.pcpu is None or home.cores is None:
            continue
        usual = before.cores.get(key, home.cores)
        lately = max(wanted.get(key, home.cores), demand.wanted.get(key, 0.0))
        now = min(home.cores, lately)
        slowly = usual + min(1.0, elapsed_s / USUAL_S) * (now - usual)
        cores[key] = min(home.cores, max(now, slowly))
        if demand.asleep(key):
            asleep.add(key)
        elif home.cores >= WORTH_LEAST_CORES:
            awake[key] = frozenset({home.pcpu})
    return BookedUse(cores, frozenset(asleep), awake)
