"""Combined Usage: whose I/O work can go to slow cores at little cost (kumar2009, section 3.2).

Intuition. A hypervisor's own work for a guest moves packets and blocks. Where the device is busy
while that work is being done, the device is the bottleneck and a slower core costs little; where
one waits for the other, a slower core makes the device wait longer. The paper tells the two apart
without looking inside: two parts that are busy for more than 100 % of the time together must
overlap.

    Combined Usage = CPU utilization + network utilization (fraction of the line's bandwidth)

Above 100 %: *insensitive*. Below: *sensitive*, and a domain that does next to no I/O is among
those: moving it would gain nothing.

What the paper leaves open, and what is done here:

* Its CPU utilization is that of dom0, which "runs on a single CPU": it never exceeds 100 %. A KVM
  domain has several threads (emulator, iothreads, vhost workers), which run beside each other, so
  their sum may exceed 100 % though no device is busy at all. It is capped at 100 %, as if they
  shared the one CPU of dom0. CPU time alone then never passes for overlap.
* Its dom0 serves all guests. Here each domain has threads of its own and is judged by itself; the
  ``ab`` figure of four guests is one domain's when all four are one.
* It does not say of which traffic on which link: the busiest direction of the busiest interface
  counts, since links are full duplex, against the bandwidth limit of the definition or the line.
* It has no term for disks (its disks kept dom0 below 10 %). A domain that does nothing but disk
  I/O stays below 100 %, hence sensitive, hence where it is.
* It measures at each clock speed: usage is taken where the work runs, not scaled to another core.

Beyond the paper, which calls its own evidence preliminary: hysteresis (a band around 100 %, and
several intervals in a row), and the move is an experiment. Throughput before and after it are
compared, and a domain that lost more than ``loss_max`` is taken back and left alone for a while.

Weakness: throughput is the bytes of the interfaces, so a load that falls by itself just after the
move passes for a loss; the domain then stays where it was, which is the safe side.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from amp_nova.model.topology import Topology


@dataclass(frozen=True, slots=True)
class IoThread:
    """A thread that does a domain's I/O; ``home``: the pCPUs its definition leaves it."""

    tid: int
    kind: str
    """``emulator``, ``iothread``, ``vhost`` or ``migration``; the last does no I/O of the guest."""
    run_ns: int
    pcpus: frozenset[int]
    home: frozenset[int]


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface as its guest sees it: bytes so far, and what either direction may carry.

    ``None``: not known. Limits are in bytes per second.
    """

    name: str
    in_bytes: int | None = None
    out_bytes: int | None = None
    in_limit_bytes_s: float | None = None
    out_limit_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class IoReading:
    """The I/O work of one domain at one moment: counters and affinities."""

    resource: str
    name: str
    project: str
    incarnation: str
    time_ns: int
    threads: tuple[IoThread, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class IoUse:
    """What a domain's I/O work used between two readings.

    ``cpu_cores``: CPU time of all its threads over wall time; ``busiest_cores``: of the busiest.
    ``network_ratio``: share of its bandwidth, ``None`` where it or the traffic is not known.
    """

    cpu_cores: float
    busiest_cores: float
    network_ratio: float | None
    bytes_s: float

    @property
    def combined_ratio(self) -> float | None:
        """Combined Usage, 1.0 for 100 %."""
        if self.network_ratio is None:
            return None
        return min(1.0, self.cpu_cores) + min(1.0, self.network_ratio)


def network_ratio(rates: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Share of its bandwidth that the busiest direction uses; each is (bytes/s, limit).

    ``None`` when a direction is not counted, or carries traffic on a line of unknown bandwidth.
    """
    most = 0.0
    for rate, limit in rates:
        if rate is None or (rate > 0 and not limit):
            return None
        if rate > 0 and limit:
            most = max(most, rate / limit)
    return most


def use(before: IoReading, after: IoReading) -> IoUse | None:
    """What was used in between; ``None`` when it cannot be told (another life, no time)."""
    wall_s = (after.time_ns - before.time_ns) / 1e9
    if wall_s <= 0 or before.incarnation != after.incarnation:
        return None
    ran = {t.tid: t.run_ns for t in before.threads}
    # A thread that was not there before did all it did in between.
    used_s = [
        max(0, t.run_ns - ran.get(t.tid, 0)) / 1e9 for t in after.threads if t.kind != "migration"
    ]
    known = {i.name: i for i in before.interfaces}
    rates: list[tuple[float | None, float | None]] = []
    for now in after.interfaces:
        then = known.get(now.name)
        rates.append(
            (_rate(then.in_bytes if then else None, now.in_bytes, wall_s), now.in_limit_bytes_s)
        )
        rates.append(
            (_rate(then.out_bytes if then else None, now.out_bytes, wall_s), now.out_limit_bytes_s)
        )
    return IoUse(
        sum(used_s) / wall_s,
        max(used_s, default=0.0) / wall_s,
        network_ratio(rates),
        sum(rate or 0.0 for rate, _ in rates),
    )


def _rate(before: int | None, after: int | None, wall_s: float) -> float | None:
    if before is None or after is None or after < before:
        return None
    return (after - before) / wall_s


@dataclass(frozen=True, slots=True)
class Rule:
    """When I/O work changes sides: Combined Usage beyond the band, ``confirm`` times in a row."""

    enter_ratio: float = 1.05
    leave_ratio: float = 0.90
    confirm: int = 3
    loss_max: float = 0.25
    """Share of its throughput that a move may cost: the paper's own worst case at half speed."""
    barred_s: float = 600.0
    """How long a domain that lost more is left where it was."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is held of one domain's I/O work."""

    insensitive: bool = False
    contrary: int = 0
    """Intervals in a row that said the opposite."""
    rates_bytes_s: tuple[float, ...] = ()
    """Throughput of the last intervals on the present cores."""
    before_bytes_s: float | None = None
    """Throughput just before it was moved."""
    effect_ratio: float | None = None
    """Throughput just after the last move to slow cores over just before."""
    barred_until_s: float = 0.0


def judge(case: Case, used: IoUse | None, rule: Rule, now_s: float, *, moves: bool) -> Case:
    """The case after one more interval; without ``moves`` nothing is moved, so nothing is lost."""
    usage = None if used is None else used.combined_ratio
    if used is None or usage is None:
        return case if case.contrary == 0 else replace(case, contrary=0)
    rates = (*case.rates_bytes_s, used.bytes_s)[-rule.confirm :]
    # What is held or somebody else's is no experiment of ours.
    before = case.before_bytes_s if moves else None
    if (rates, before) != (case.rates_bytes_s, case.before_bytes_s):
        case = replace(case, rates_bytes_s=rates, before_bytes_s=before)
    if case.insensitive and case.before_bytes_s and len(rates) == rule.confirm:
        effect = sum(rates) / len(rates) / case.before_bytes_s
        case = replace(case, before_bytes_s=None, effect_ratio=effect)
        if effect < 1.0 - rule.loss_max:
            return Case(effect_ratio=effect, barred_until_s=now_s + rule.barred_s)
    if case.insensitive:
        contrary = usage < rule.leave_ratio
    else:
        contrary = usage > rule.enter_ratio and now_s >= case.barred_until_s
    if not contrary:
        return case if case.contrary == 0 else replace(case, contrary=0)
    if case.contrary + 1 < rule.confirm:
        return replace(case, contrary=case.contrary + 1)
    if case.insensitive:
        return Case(effect_ratio=case.effect_ratio)
    return Case(insensitive=True, before_bytes_s=sum(rates) / len(rates) if moves else None)


def slow_pcpus(topology: Topology) -> frozenset[int]:
    """All pCPUs but those of the fastest core type there is; none on a host of one type."""
    there = [t.name for t in topology.core_types if topology.pcpus_of(t.name)]
    return frozenset(p for name in there[:-1] for p in topology.pcpus_of(name))


def places(home: frozenset[int], topology: Topology) -> tuple[frozenset[int], frozenset[int]]:
    """Where a thread of this home is slow, and where it is fast; its home where there is no such.

    Never beyond its home: what the definition pins stays where it is pinned.
    """
    slow = slow_pcpus(topology)
    return home & slow or home, home - slow or home


def wanted(
    thread: IoThread, topology: Topology, case: Case, *, sensitive_fast: bool
) -> frozenset[int]:
    """The pCPUs a thread shall have, as its domain is judged."""
    slow, fast = places(thread.home, topology)
    if thread.kind == "migration":  # the operator waits for it, not the guest
        return thread.home
    if case.insensitive:
        return slow
    return fast if sensitive_fast else thread.home


def speed_ratio(topology: Topology) -> float | None:
    """Speed of the fastest core type over the slowest there is; ``None`` when not known."""
    there = [t for t in topology.core_types if topology.pcpus_of(t.name)]
    slow, fast = there[0].coefficient, there[-1].coefficient
    return fast / slow if slow and fast else None


def least_kept_ratio(used: IoUse, speed: float) -> float:
    """Throughput a move keeps at the least, were I/O work as sensitive to core speed as any.

    Its busiest thread would need ``speed`` times the CPU time, and has one core. The paper's
    netperf UDP, which does not overlap, loses just that; its insensitive ones lose far less.
    """
    return min(1.0, 1.0 / (used.busiest_cores * speed)) if used.busiest_cores > 0 else 1.0


def freed_s(
    before: IoReading, after: IoReading, topology: Topology, speed: float | None
) -> float | None:
    """Estimate of the fast-core time that threads on slow cores set free between two readings.

    Had they run at home, that much of their work as fast cores are of their home would have been
    done there, ``speed`` times faster.
    """
    slow = slow_pcpus(topology)
    if not speed or before.incarnation != after.incarnation:
        return None
    ran: Mapping[int, IoThread] = {t.tid: t for t in before.threads}
    total = 0.0
    for thread in after.threads:
        then = ran.get(thread.tid)
        if then is not None and then.pcpus <= slow and thread.home - slow:
            share = len(thread.home - slow) / len(thread.home)
            total += max(0, thread.run_ns - then.run_ns) / 1e9 * share / speed
    return total


def off_fast_cores(reading: IoReading, topology: Topology) -> bool:
    """Whether a thread that might use fast cores is kept on slow ones."""
    slow = slow_pcpus(topology)
    return any(t.pcpus <= slow and t.home - slow for t in reading.threads)


def ours(threads: Iterable[IoThread], topology: Topology) -> bool:
    """Whether every thread has its home, or an affinity that we could have set."""
    return all(t.pcpus in (t.home, *places(t.home, topology)) for t in threads)
