# SPDX-License-Identifier: Apache-2.0
"""The accounts of all vCPUs, carried from one observation to the next."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from msgspec import Struct, structs

from amp_nova.accounting.delivery import (
    BEST_EFFORT,
    Account,
    Conditions,
    Ratios,
    add_interval,
)
from amp_nova.accounting.speed_loss import siblings_busy
from amp_nova.accounting.would_throttle import WouldLimit
from amp_nova.control.entitlement import Entitlement
from amp_nova.model.allocation import Allocations, Positions
from amp_nova.model.delivered import Delivery
from amp_nova.model.observation import (
    TAMPERED,
    DomainReading,
    Observation,
    Usage,
    VcpuKey,
    VcpuReading,
    usage,
)
from amp_nova.model.topology import Topology

WINDOW_S = 3.0
"""Length of a window; each yields one delivered ratio."""
EMPTY = Account()


class AccountEntry(Struct, frozen=True):
    """One vCPU: its account as of ``time_ns``, and its last reading, from the same incarnation.

    ``conditions``: the conditions it has run under since; ``None`` if it may have run on several
    core types, which cannot be accounted. While the vCPU sleeps its entry does not change:
    ``account_at`` adds the idle time.
    """

    incarnation: str
    time_ns: int
    reading: VcpuReading | None
    conditions: Conditions | None
    account: Account = EMPTY

    def account_at(self, time_ns: int) -> Account:
        """The account at ``time_ns``, given that the vCPU has not run since the entry's time."""
        idle_s = (time_ns - self.time_ns) / 1e9
        if idle_s <= 0.0 or self.reading is None or self.conditions is None:
            return self.account
        retired = None if self.reading.counts is None else 0.0
        # The open window ends as it would have, and the rest of the time is one long window.
        ends_s = min(idle_s, max(0.0, WINDOW_S - self.account.window.wall_s))
        account = self.account
        for part_s in filter(None, (ends_s, idle_s - ends_s)):
            slept = Usage(part_s, 0.0, 0.0, 0.0, instructions=retired)
            account = add_interval(account, slept, self.conditions, WINDOW_S)
        return account


@dataclass(frozen=True, slots=True)
class Accounts:
    """The entries of all vCPUs, by instance and index, as of the observation at ``time_ns``.

    ``readings``: the last reading of each instance; while it is equal, the entries do not change.
    ``idle_ns``: as in the observation.
    """

    time_ns: int = 0
    entries: Mapping[str, Mapping[int, AccountEntry]] = field(default_factory=dict)
    readings: Mapping[str, DomainReading] = field(default_factory=dict)
    conditions: Mapping[VcpuKey, Conditions] = field(default_factory=dict)
    idle_ns: Mapping[int, int] = field(default_factory=dict)

    def of(self, key: VcpuKey) -> Account:
        """The account of one vCPU; an empty account if the vCPU is unknown."""
        entry = self.entries.get(key[0], {}).get(key[1])
        return EMPTY if entry is None else entry.account_at(self.time_ns)

    def deliveries(self, keys: Iterable[VcpuKey]) -> dict[VcpuKey, Delivery]:
        """What these vCPUs were owed and got."""
        return {key: self.of(key).delivery for key in keys}

    def cpu_s(self, key: VcpuKey) -> tuple[float, ...]:
        """CPU seconds of one vCPU by core type."""
        entry = self.entries.get(key[0], {}).get(key[1])
        return EMPTY.cpu_s if entry is None else entry.account.cpu_s

    def under(self, conditions: Mapping[VcpuKey, Conditions]) -> "Accounts":
        """These accounts, with new conditions from now on.

        A vCPU without conditions is not accounted.
        """
        if conditions is self.conditions or conditions == self.conditions:
            return self
        entries: dict[str, dict[int, AccountEntry]] = {}
        for resource, vcpus in self.entries.items():
            entries[resource] = made = dict(vcpus)
            for index, entry in vcpus.items():
                ran = conditions.get((resource, index))
                if ran != entry.conditions:
                    account, now_ns = entry.account_at(self.time_ns), self.time_ns
                    made[index] = AccountEntry(
                        entry.incarnation, now_ns, entry.reading, ran, account
                    )
        return replace(self, entries=entries, conditions=conditions)


def advance(before: Accounts, observation: Observation) -> Accounts:
    """Add the interval since the last observation; forget vCPUs whose instance is gone."""
    busy = siblings_busy(observation, before.idle_ns, observation.time_ns - before.time_ns)
    entries, readings = {}, {}
    for domain in observation.domains:
        resource = domain.domain.resource
        vcpus = before.entries.get(resource, {})
        last = before.readings.get(resource)
        if last is not domain and last != domain:
            vcpus = _domain(before, observation.time_ns, domain, vcpus, busy)
        entries[resource] = vcpus
        readings[resource] = domain
    return replace(
        before,
        time_ns=observation.time_ns,
        entries=entries,
        readings=readings,
        idle_ns=observation.idle_ns,
    )


def _domain(
    before: Accounts,
    now_ns: int,
    domain: DomainReading,
    vcpus: Mapping[int, AccountEntry],
    busy: Mapping[VcpuKey, float],
) -> dict[int, AccountEntry]:
    """The new entries of a domain whose reading changed."""
    resource, incarnation = domain.domain.resource, domain.domain.incarnation
    wall_ns, entries = now_ns - before.time_ns, dict(vcpus)
    for reading in domain.vcpus:
        index = reading.index
        entry = vcpus.get(index)
        if entry is None:
            conditions = before.conditions.get((resource, index))
            entries[index] = AccountEntry(incarnation, now_ns, reading, conditions)
        elif entry.reading is reading and entry.incarnation == incarnation:
            continue  # usual, and the quickest to see
        elif not _slept(entry, reading, incarnation):
            if entry.incarnation == incarnation:
                busy_ratio = busy.get((resource, index), 0.0)
                account = _after(before, entry, reading, wall_ns, busy_ratio)
            else:
                account = entry.account_at(before.time_ns)
            entries[index] = AccountEntry(incarnation, now_ns, reading, entry.conditions, account)
    if len(entries) > len(domain.vcpus):
        for index in vcpus.keys() - {r.index for r in domain.vcpus}:
            # Not readable now: not accounted until the next reading.
            entry = vcpus[index]
            account = entry.account_at(before.time_ns)
            entries[index] = structs.replace(entry, time_ns=now_ns, reading=None, account=account)
    return entries


def _after(
    before: Accounts, entry: AccountEntry, reading: VcpuReading, wall_ns: int, busy_ratio: float
) -> Account:
    """The account after an interval in which a vCPU wanted to run.

    An interval in which counters restarted, or without conditions, is not accounted.
    """
    account, last, ran = entry.account_at(before.time_ns), entry.reading, entry.conditions
    if last is None or ran is None:
        return account
    if (used := usage(last, reading, wall_ns)) is None:
        return account
    if ran.bounded:
        used = structs.replace(used, throttled_s=used.wait_s)
    if busy_ratio:
        used = structs.replace(used, siblings_busy_ratio=busy_ratio)
    return add_interval(account, used, ran, WINDOW_S)


def _slept(entry: AccountEntry, reading: VcpuReading, incarnation: str) -> bool:
    last = entry.reading
    return (
        last is not None
        and last.run_ns == reading.run_ns
        and last.wait_ns == reading.wait_ns
        and last.throttled_ns == reading.throttled_ns
        and (last.counts is None) == (reading.counts is None)
        and entry.incarnation == incarnation
    )


def of_instance(vcpus: Iterable[Ratios]) -> Ratios:
    """The histogram of an instance: the sum of its vCPUs' histograms."""
    total = Ratios()
    for ratios in vcpus:
        counts = tuple(a + b for a, b in zip(total.counts, ratios.counts, strict=True))
        total = Ratios(counts, total.total + ratios.total)
    return total


def conditions(
    topology: Topology,
    entitlements: Mapping[VcpuKey, Entitlement],
    allocations: Allocations,
    positions: Positions,
    tick_s: float,
) -> dict[VcpuKey, Conditions]:
    """The conditions of all vCPUs whose affinity lies within one core type.

    ``tick_s``: the time between two samples of a vCPU that books Ips.
    """
    types = topology.core_types
    made = {}
    for key, position in positions.items():
        if position is None:
            continue
        core_type, limit = types[position], allocations[key].bandwidth
        entitlement = entitlements[key]
        home, booking = entitlement.home, entitlement.booking
        if (allocations[key].uncounted or "").startswith(TAMPERED):
            booking = BEST_EFFORT  # whoever divides its limit among threads is short by that
        own = home.coefficient if home.core_type == core_type.name else None
        # When the work changes, the limit is wrong until two samples show it.
        delay_s = 2.0 * tick_s if entitlement.governed_by == "ips" else 0.0
        made[key] = Conditions(
            position,
            len(types),
            core_type.coefficient if own is None else own,
            booking,
            delay_s + (limit.period_us / 1e6 if limit else 0.0),
            core_type,
            min(1.0, limit.cores) if limit else 1.0,
            bounded=entitlement.ineffective and not allocations[key].realtime,
        )
    return made


def only_observed(
    ran_under: Mapping[VcpuKey, Conditions],
    topology: Topology,
    entitlements: Mapping[VcpuKey, Entitlement],
) -> dict[VcpuKey, Conditions]:
    """These conditions, with the limits that enforcement would set."""
    coefficients = {t.name: t.coefficient for t in topology.core_types}
    made = dict(ran_under)
    for key, ran in ran_under.items():
        entitlement = entitlements[key]
        if entitlement.share is None:
            continue
        home = entitlement.home
        coefficient = home.coefficient or coefficients.get(home.core_type or "")
        cores = min(1.0, entitlement.limit.cores) if entitlement.limit else 1.0
        made[key] = structs.replace(ran, would=WouldLimit(cores, coefficient))
    return made
