"""The accounts of all vCPUs, carried from one observation to the next."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from amp_nova.accounting.delivery import (
    Account,
    Booked,
    Conditions,
    Ratios,
    add_idle,
    add_interval,
)
from amp_nova.accounting.speed_loss import siblings_busy
from amp_nova.control.entitlement import Entitlement
from amp_nova.model.allocation import Allocation
from amp_nova.model.observation import Observation, VcpuKey, VcpuReading, usage
from amp_nova.model.topology import CoreType, Topology

WINDOW_S = 3.0
"""Length of the windows that delivered ratios are taken over."""
EMPTY = Account()


@dataclass(frozen=True, slots=True)
class Entry:
    """One vCPU: its account as of ``time_ns``, and its last reading, from the same process.

    ``conditions``: those it has run under since; ``None``: it ran on several core types, which
    cannot be accounted. An entry stays as it is while the vCPU sleeps: ``account_at`` adds that.
    """

    incarnation: str
    time_ns: int
    reading: VcpuReading | None
    conditions: Conditions | None
    account: Account = EMPTY

    def account_at(self, time_ns: int) -> Account:
        """The account at a time until which it did not run."""
        idle_s = (time_ns - self.time_ns) / 1e9
        if idle_s <= 0.0 or self.reading is None or self.conditions is None:
            return self.account
        counted = self.reading.counts is not None
        return add_idle(self.account, idle_s, self.conditions, WINDOW_S, counted=counted)


@dataclass(frozen=True, slots=True)
class Accounts:
    """All vCPUs' entries as of the observation at ``time_ns``."""

    time_ns: int = 0
    entries: Mapping[VcpuKey, Entry] = field(default_factory=dict)
    conditions: Mapping[VcpuKey, Conditions] = field(default_factory=dict)

    def of(self, key: VcpuKey) -> Account:
        """The account of one vCPU; an empty one if it is not known."""
        entry = self.entries.get(key)
        return EMPTY if entry is None else entry.account_at(self.time_ns)

    def cpu_s(self, key: VcpuKey) -> tuple[float, ...]:
        """CPU seconds of one vCPU by core type."""
        entry = self.entries.get(key)
        return EMPTY.cpu_s if entry is None else entry.account.cpu_s

    def under(self, conditions: Mapping[VcpuKey, Conditions]) -> "Accounts":
        """The accounts under these conditions from now on; without any a vCPU is not accounted."""
        if conditions == self.conditions:
            return self
        entries = {}
        for key, entry in self.entries.items():
            wanted = conditions.get(key)
            if wanted != entry.conditions:
                account = entry.account_at(self.time_ns)
                entry = replace(entry, time_ns=self.time_ns, conditions=wanted, account=account)
            entries[key] = entry
        return Accounts(self.time_ns, entries, conditions)


def advance(before: Accounts, seen: Observation) -> Accounts:
    """Add the interval since the last observation; forget vCPUs whose instance is gone."""
    wall_ns = seen.time_ns - before.time_ns
    busy = _siblings_busy(before, seen, wall_ns)
    entries = {}
    for domain in seen.domains:
        resource, incarnation = domain.domain.resource, domain.domain.incarnation
        for reading in domain.vcpus:
            key = (resource, reading.index)
            entry = before.entries.get(key)
            if entry is None:
                conditions = before.conditions.get(key)
                entry = Entry(incarnation, seen.time_ns, reading, conditions)
            elif not _slept(entry, reading, incarnation):
                ratio = busy.get(key, 0.0)
                entry = _entered(entry, reading, incarnation, before.time_ns, seen.time_ns, ratio)
            entries[key] = entry
    alive = {d.domain.resource for d in seen.domains}
    for key, entry in before.entries.items():
        if key not in entries and key[0] in alive:  # unreadable just now: what it does is unknown
            account = entry.account_at(before.time_ns)
            entries[key] = replace(entry, time_ns=seen.time_ns, reading=None, account=account)
    return Accounts(seen.time_ns, entries, before.conditions)


def _slept(entry: Entry, reading: VcpuReading, incarnation: str) -> bool:
    last = entry.reading
    return (
        last is not None
        and last.run_ns == reading.run_ns
        and last.wait_ns == reading.wait_ns
        and last.throttled_ns == reading.throttled_ns
        and (last.counts is None) == (reading.counts is None)
        and entry.incarnation == incarnation
    )


def _entered(
    entry: Entry,
    reading: VcpuReading,
    incarnation: str,
    since_ns: int,
    now_ns: int,
    siblings_busy_ratio: float,
) -> Entry:
    """The entry with an interval in which the vCPU may have run.

    The counters of another process, and counters that go backwards, only start a new interval.
    """
    account, last = entry.account_at(since_ns), entry.reading
    if entry.incarnation == incarnation and last is not None and entry.conditions is not None:
        used = usage(last, reading, now_ns - since_ns)
        if used is not None:
            if siblings_busy_ratio:
                used = replace(used, siblings_busy_ratio=siblings_busy_ratio)
            account = add_interval(account, used, entry.conditions, WINDOW_S)
    return Entry(incarnation, now_ns, reading, entry.conditions, account)


def _siblings_busy(before: Accounts, seen: Observation, wall_ns: int) -> Mapping[VcpuKey, float]:
    """The share of time that sibling hardware threads were busy, where its cost is calibrated."""
    if wall_ns <= 0 or all(t.smt_busy_factor is None for t in seen.topology.core_types):
        return {}
    ran = {}
    for domain in seen.domains:
        for reading in domain.vcpus:
            key = (domain.domain.resource, reading.index)
            entry = before.entries.get(key)
            if entry and entry.reading and entry.incarnation == domain.domain.incarnation:
                ran[key] = max(0, reading.run_ns - entry.reading.run_ns) / wall_ns
    return siblings_busy(seen, ran)


def of_instance(vcpus: Iterable[Ratios]) -> Ratios:
    """The histogram of an instance, from those of its vCPUs."""
    total = Ratios()
    for ratios in vcpus:
        counts = tuple(a + b for a, b in zip(total.counts, ratios.counts, strict=True))
        total = Ratios(counts, total.total + ratios.total)
    return total


def conditions(
    topology: Topology,
    entitlements: Mapping[VcpuKey, Entitlement],
    allocations: Mapping[VcpuKey, Allocation],
    ips_delay_s: float = 0.0,
) -> dict[VcpuKey, Conditions]:
    """The conditions of all vCPUs that are kept on one core type.

    ``ips_delay_s``: how long the Ips controller may take to correct a limit.
    """
    position = {t.name: i for i, t in enumerate(topology.core_types)}
    known: dict[frozenset[int], CoreType | None] = {}
    made = {}
    for key, (pcpus, limit) in allocations.items():
        if pcpus not in known:
            known[pcpus] = topology.only_type(pcpus)
        core_type = known[pcpus]
        if core_type is None:
            continue
        entitlement = entitlements[key]
        home, quota = entitlement.home, entitlement.quota
        own = home.coefficient if home.core_type == core_type.name else None
        # A change of the work costs this much before the controller corrects it.
        delay_s = ips_delay_s if entitlement.governed_by == "ips" else 0.0
        booking = entitlement.booking
        made[key] = Conditions(
            position[core_type.name],
            len(position),
            core_type.coefficient if own is None else own,
            Booked(booking.refcores, booking.ips, quota.burst_s if quota else 0.0),
            delay_s + (limit.period_us / 1e6 if limit else 0.0),
            core_type.clock_hz,
            core_type.smt_busy_factor,
            core_type.nominal_ips,
        )
    return made
