# SPDX-License-Identifier: Apache-2.0
"""Combined Usage: which I/O work can run on slow cores at little cost (kumar2009, section 3.2).

Intuition. A hypervisor's own work for a guest moves packets and blocks. If the device is busy while
that work runs, the device is the bottleneck and a slower core costs little; if the two wait for
each other, a slower core makes the device wait longer. The paper tells the two cases apart without
instrumentation: if work and device are together busy for more than 100 % of the time, they overlap.

    Combined Usage = CPU utilization + network utilization (fraction of the line's bandwidth)

Above 100 % the work is *insensitive* to core speed, below it is *sensitive*. A domain with hardly
any I/O is sensitive too: moving it would gain nothing.

What the paper leaves open, and the choice made here:

* CPU utilization. The paper's dom0 "runs on a single CPU" and never exceeds 100 %. A KVM domain has
  several I/O threads (emulator, iothreads, vhost workers) that run in parallel, so their sum may
  exceed 100 % without a busy device. It is capped at 100 %: CPU time alone never means overlap.
* Domains. The paper's dom0 serves all guests. Here each domain has its own threads and is judged
  by itself; the paper's ``ab`` run with four guests corresponds to one domain.
* Network utilization. Links are full duplex, so the busiest direction of the busiest interface
  counts, relative to the limit in the domain's definition or else to the line.
* Disks. The paper has no term for them (its disks kept dom0 below 10 %). A domain that only does
  disk I/O stays below 100 %, so it is sensitive and is not moved.
* Clock speed. The paper measures at each speed; here usage is taken at the speed of the core that
  does the work, and not scaled.

The paper calls its evidence preliminary. Therefore a domain changes sides only beyond a band around
100 % and after several intervals in a row, and every move is an experiment: throughput before and
after it is compared, and a domain that lost more than ``loss_max`` moves back for a while.

Weakness: throughput means bytes on the interfaces. A load that drops on its own just after the move
counts as a loss, and the domain then stays where it was, which is the safe side.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import Struct, structs

from amp_nova.model.topology import Topology


class IoThread(Struct, frozen=True):
    """A thread that does a domain's I/O.

    ``kind``: ``emulator``, ``iothread``, ``vhost``, or ``migration``, which does no guest I/O;
    ``pcpus``: its affinity; ``home``: the pCPUs that the domain's definition allows it.
    """

    tid: int
    kind: str
    run_ns: int
    pcpus: frozenset[int]
    home: frozenset[int]


class Interface(Struct, frozen=True):
    """Bytes carried by an interface, in and out as seen by the guest, and its bandwidth limits.

    ``None``: unknown. Limits are in bytes per second.
    """

    name: str
    in_bytes: int | None = None
    out_bytes: int | None = None
    in_limit_bytes_s: float | None = None
    out_limit_bytes_s: float | None = None


class IoReading(Struct, frozen=True):
    """Counters and affinities of one domain's I/O; ``failure``: why they cannot be read."""

    resource: str
    name: str
    project: str
    incarnation: str
    time_ns: int
    threads: tuple[IoThread, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    failure: str | None = None


class IoUse(Struct, frozen=True):
    """I/O of a domain between two readings.

    ``cpu_cores``: CPU time of all its threads over wall time; ``network_ratio``: network
    utilization, ``None`` if traffic or bandwidth is unknown.
    """

    cpu_cores: float
    network_ratio: float | None
    bytes_s: float

    @property
    def combined_ratio(self) -> float | None:
        """Combined Usage, 1.0 for 100 %."""
        if self.network_ratio is None:
            return None
        return min(1.0, self.cpu_cores) + min(1.0, self.network_ratio)


def network_ratio(rates: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Utilization of the busiest direction; each direction is its bytes per second and its limit.

    ``None`` if a direction is not counted or carries traffic on a line of unknown bandwidth.
    """
    most = 0.0
    for rate, limit in rates:
        if rate is None or (rate > 0 and not limit):
            return None
        if rate > 0 and limit:
            most = max(most, rate / limit)
    return most


def use(before: IoReading, after: IoReading) -> IoUse | None:
    """I/O between two readings; ``None`` if the domain restarted or no time passed."""
    wall_s = (after.time_ns - before.time_ns) / 1e9
    if wall_s <= 0 or before.incarnation != after.incarnation:
        return None
    ran = {t.tid: t.run_ns for t in before.threads}
    # A new thread has used all its CPU time since the reading before.
    used_s = [
        max(0, t.run_ns - ran.get(t.tid, 0)) / 1e9 for t in after.threads if t.kind != "migration"
    ]
    earlier = {i.name: i for i in before.interfaces}
    rates = []
    for now in after.interfaces:
        then = earlier.get(now.name, Interface(now.name))
        rates.append((_rate(then.in_bytes, now.in_bytes, wall_s), now.in_limit_bytes_s))
        rates.append((_rate(then.out_bytes, now.out_bytes, wall_s), now.out_limit_bytes_s))
    return IoUse(
        sum(used_s) / wall_s,
        network_ratio(rates),
        sum(rate or 0.0 for rate, _ in rates),
    )


def _rate(before: int | None, after: int | None, wall_s: float) -> float | None:
    if before is None or after is None or after < before:
        return None
    return (after - before) / wall_s


@dataclass(frozen=True, slots=True)
class Rule:
    """When a domain changes sides: usage outside the band for ``confirm`` intervals in a row.

    ``loss_max``: share of its throughput that a move may cost; the default is the paper's worst
    case at half speed. ``barred_s``: how long a domain that lost more is not moved again.
    """

    enter_ratio: float = 1.05
    leave_ratio: float = 0.90
    confirm: int = 3
    loss_max: float = 0.25
    barred_s: float = 600.0


class Case(Struct, frozen=True):
    """How one domain is classified, and what its last move to slow cores did.

    ``contrary``: consecutive intervals that indicated the other side; ``rates_bytes_s``: throughput
    of the last intervals; ``before_bytes_s``: throughput before the move, until it is compared;
    ``effect_ratio``: throughput after the last move to slow cores over that before.
    """

    insensitive: bool = False
    contrary: int = 0
    rates_bytes_s: tuple[float, ...] = ()
    before_bytes_s: float | None = None
    effect_ratio: float | None = None
    barred_until_s: float = 0.0


def judge(case: Case, used: IoUse | None, rule: Rule, now_s: float, *, moves: bool) -> Case:
    """The classification after one more interval.

    Without ``moves`` the domain's threads are not moved, so throughput is not compared.
    """
    usage = None if used is None else used.combined_ratio
    if used is None or usage is None:
        return structs.replace(case, contrary=0)
    rates = (*case.rates_bytes_s, used.bytes_s)[-rule.confirm :]
    before = case.before_bytes_s if moves else None
    case = structs.replace(case, rates_bytes_s=rates, before_bytes_s=before)
    if case.insensitive and before and len(rates) == rule.confirm:
        effect = sum(rates) / len(rates) / before
        if effect < 1.0 - rule.loss_max:
            return Case(effect_ratio=effect, barred_until_s=now_s + rule.barred_s)
        case = structs.replace(case, before_bytes_s=None, effect_ratio=effect)
    if case.insensitive:
        contrary = usage < rule.leave_ratio
    else:
        contrary = usage > rule.enter_ratio and now_s >= case.barred_until_s
    if not contrary:
        return structs.replace(case, contrary=0)
    if case.contrary + 1 < rule.confirm:
        return structs.replace(case, contrary=case.contrary + 1)
    if case.insensitive:
        return Case(effect_ratio=case.effect_ratio)
    return Case(insensitive=True, before_bytes_s=sum(rates) / len(rates) if moves else None)


def slow_pcpus(topology: Topology) -> frozenset[int]:
    """All pCPUs but those of the fastest core type; none on a host with one core type."""
    present = [t.name for t in topology.core_types if topology.pcpus_of(t.name)]
    return frozenset(p for name in present[:-1] for p in topology.pcpus_of(name))


def speed_ratio(topology: Topology) -> float | None:
    """Speed of the fastest core type over the slowest; ``None`` if unknown."""
    present = [t for t in topology.core_types if topology.pcpus_of(t.name)]
    slow, fast = present[0].coefficient, present[-1].coefficient
    return fast / slow if slow and fast else None


def slow_part(home: frozenset[int], topology: Topology) -> frozenset[int]:
    """The slow pCPUs of a thread's home, or all of it if it has none.

    No pCPU outside the home is returned, so pins in the definition are respected.
    """
    return home & slow_pcpus(topology) or home


def wanted(thread: IoThread, topology: Topology, case: Case) -> frozenset[int]:
    """The affinity that a thread gets under its domain's classification."""
    # The operator waits for a migration, not the guest.
    if case.insensitive and thread.kind != "migration":
        return slow_part(thread.home, topology)
    return thread.home


def least_kept_ratio(used: IoUse, speed: float) -> float:
    """Lower bound of the share of throughput that remains on slow cores, one for each thread.

    ``speed`` is that of the fast core over the slow one. Only the time in which some thread runs
    can become ``speed`` times as long. The threads run in turn at worst, so that this time is the
    sum of their CPU times, and at most all of the time. What overlaps keeps more.
    """
    return 1.0 / (1.0 + min(1.0, used.cpu_cores) * (speed - 1.0))


def off_fast_cores(reading: IoReading, slow: frozenset[int]) -> bool:
    """Whether a thread that could use fast cores is kept on the slow ones (``slow_pcpus``)."""
    return any(t.pcpus <= slow and t.home - slow for t in reading.threads)


def ours(threads: Iterable[IoThread], topology: Topology) -> bool:
    """Whether every thread has an affinity that the agent could have set, or its home."""
    return all(t.pcpus in (t.home, slow_part(t.home, topology)) for t in threads)
