"""The accounts of every vCPU from one cycle to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amp_nova.accounting.delivery import (
    RATIO_BUCKETS,
    Account,
    Tenure,
    bucket,
    closes,
    rest,
    settle,
)
from amp_nova.accounting.speed_loss import siblings_busy
from amp_nova.control.entitlement import Promise
from amp_nova.model.observation import DomainReading, Observation, VcpuKey, VcpuReading, usage
from amp_nova.model.topology import CoreType, Topology

NOTHING = Account()
_NO_RATIOS = (0,) * (len(RATIO_BUCKETS) + 1)
_INTERVALS_MAX = 60
"""Intervals after which also accounts of vCPUs that sleep on and on are brought up to date."""


@dataclass(slots=True)
class _Entry:
    """One vCPU: its last reading, and its account as of the interval of number ``entered``."""

    incarnation: str
    reading: VcpuReading | None
    tenure: Tenure | None
    entered: int
    account: Account = NOTHING
    new_terms: bool = True
    """Whether no interval has been settled under this tenure yet."""


class Books:
    """Remembers the last readings and under what terms each vCPU has run since.

    Accounts of vCPUs that sleep, whose readings are the very same ones, are brought up to date
    when they are asked for, and when the vCPU has run.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._time_ns = 0
        self._entered = 0
        """How many intervals there were so far."""
        self._walls_ns: list[int] = []
        """How long the last ones were."""
        self._entries: dict[str, dict[int, _Entry]] = {}
        self._readings: dict[str, DomainReading] = {}
        self._tenures: Mapping[VcpuKey, Tenure] = {}
        self._ratios: dict[str, tuple[tuple[int, ...], float]] = {}

    def enter(self, seen: Observation) -> None:
        """Settle the interval since the last observation, and forget whatever is gone."""
        wall_ns = seen.time_ns - self._time_ns
        busy = self._siblings_busy(seen, wall_ns)
        if len(self._walls_ns) >= _INTERVALS_MAX:
            self._rest_all()
            self._walls_ns.clear()
        for reading in seen.domains:
            if self._readings.get(reading.domain.resource) is not reading:
                self._domain(reading, wall_ns, busy)
        self._walls_ns.append(wall_ns)
        self._entered += 1
        self._time_ns = seen.time_ns
        self._readings = {d.domain.resource: d for d in seen.domains}
        for gone in self._entries.keys() - self._readings.keys():
            del self._entries[gone]
            self._ratios.pop(gone, None)

    def _domain(self, reading: DomainReading, wall_ns: int, busy: Mapping[VcpuKey, float]) -> None:
        resource, incarnation = reading.domain.resource, reading.domain.incarnation
        entries = self._entries.setdefault(resource, {})
        for vcpu in reading.vcpus:
            index = vcpu.index
            entry = entries.get(index)
            if entry is None:
                tenure = self._tenures.get((resource, index))
                entries[index] = _Entry(incarnation, vcpu, tenure, self._entered + 1)
            elif entry.reading is not vcpu or entry.incarnation != incarnation:
                self._rest(resource, entry)
                if entry.incarnation == incarnation:
                    self._settle(resource, entry, vcpu, wall_ns, busy.get((resource, index), 0.0))
                entry.incarnation, entry.reading = incarnation, vcpu
                entry.entered = self._entered + 1
        if len(reading.vcpus) < len(entries):
            # One that could not be read just now keeps its account for the next time.
            there = {v.index for v in reading.vcpus}
            for index in entries.keys() - there:
                self._rest(resource, entries[index])
                entries[index].reading = None

    def _settle(
        self, resource: str, entry: _Entry, vcpu: VcpuReading, wall_ns: int, busy: float
    ) -> None:
        """Enter an interval in which it may have run."""
        before, tenure = entry.reading, entry.tenure
        if before is None or tenure is None:
            return
        used = usage(before, vcpu, wall_ns)
        if used is None:
            return
        if busy:
            used = replace(used, siblings_busy_ratio=busy)
        self._keep(resource, entry, settle(entry.account, used, tenure, self._window_s))
        entry.new_terms = False

    def _rest(self, resource: str, entry: _Entry) -> None:
        """Enter the intervals through which it slept: all so far that were not entered yet."""
        missed, entry.entered = self._entered - entry.entered, self._entered
        if missed <= 0 or entry.reading is None or entry.tenure is None:
            return
        tenure, counted, rest_s = entry.tenure, entry.reading.counts is not None, 0.0
        for wall_ns in self._walls_ns[-missed:]:
            if entry.new_terms:
                self._settle(resource, entry, entry.reading, wall_ns, 0.0)
            elif wall_ns > 0:
                rest_s += wall_ns / 1e9
                if closes(entry.account, self._window_s, rest_s):
                    account = rest(entry.account, rest_s, tenure, self._window_s, counted=counted)
                    self._keep(resource, entry, account)
                    rest_s = 0.0
        if rest_s:
            account = rest(entry.account, rest_s, tenure, self._window_s, counted=counted)
            entry.account = account

    def _rest_all(self) -> None:
        for resource, entries in self._entries.items():
            for entry in entries.values():
                self._rest(resource, entry)

    def _keep(self, resource: str, entry: _Entry, account: Account) -> None:
        """The account after an interval; the ratio of a window that it closed is counted."""
        if account.windows != entry.account.windows and account.ratio is not None:
            counts, total = self._ratios.get(resource, (_NO_RATIOS, 0.0))
            at = bucket(account.ratio)
            counts = (*counts[:at], counts[at] + 1, *counts[at + 1 :])
            self._ratios[resource] = (counts, total + account.ratio)
        entry.account = account

    def _siblings_busy(self, seen: Observation, wall_ns: int) -> Mapping[VcpuKey, float]:
        """How likely siblings were busy, where it is known what that costs."""
        if wall_ns <= 0 or all(t.smt_busy_factor is None for t in seen.topology.core_types):
            return {}
        ran = {}
        for reading in seen.domains:
            resource, incarnation = reading.domain.resource, reading.domain.incarnation
            entries = self._entries.get(resource, {})
            if self._readings.get(resource) is not reading:
                for vcpu in reading.vcpus:
                    entry = entries.get(vcpu.index)
                    if entry and entry.reading and entry.incarnation == incarnation:
                        ran_ns = max(0, vcpu.run_ns - entry.reading.run_ns)
                        ran[resource, vcpu.index] = ran_ns / wall_ns
        return siblings_busy(seen, ran)

    def agree(self, tenures: Mapping[VcpuKey, Tenure]) -> None:
        """Say under what terms vCPUs run from now on; one that is left out is not accounted."""
        self._tenures = tenures
        for resource, entries in self._entries.items():
            for index, entry in entries.items():
                tenure = tenures.get((resource, index))
                if tenure != entry.tenure:
                    self._rest(resource, entry)
                    entry.tenure, entry.new_terms = tenure, True

    def account(self, key: VcpuKey) -> Account:
        """The account of one vCPU so far."""
        entry = self._entries.get(key[0], {}).get(key[1])
        if entry is None:
            return NOTHING
        self._rest(key[0], entry)
        return entry.account

    def cpu_s(self, key: VcpuKey) -> tuple[float, ...]:
        """As in its account, at no cost: sleep does not change that."""
        entry = self._entries.get(key[0], {}).get(key[1])
        return NOTHING.cpu_s if entry is None else entry.account.cpu_s

    def ratios(self, resource: str) -> tuple[tuple[int, ...], float]:
        """Delivered ratios of an instance over windows: counts by bucket, and their sum."""
        for entry in self._entries.get(resource, {}).values():
            self._rest(resource, entry)
        return self._ratios.get(resource, (_NO_RATIOS, 0.0))


def tenures(
    topology: Topology,
    promises: Mapping[VcpuKey, Promise],
    readings: Mapping[VcpuKey, VcpuReading],
    settle_s: float = 0.0,
) -> dict[VcpuKey, Tenure]:
    """Under what terms vCPUs run, those that are kept on one core type.

    ``settle_s``: how long the fast loop may take to put right what it governs.
    """
    position = {t.name: i for i, t in enumerate(topology.core_types)}
    known: dict[frozenset[int], CoreType | None] = {}
    made = {}
    for key, reading in readings.items():
        if reading.pcpus not in known:
            known[reading.pcpus] = topology.only_type(reading.pcpus)
        core_type = known[reading.pcpus]
        if core_type is None:
            continue
        limit, promise = reading.bandwidth, promises[key]
        own = promise.coefficient if promise.core_type == core_type.name else None
        governed = promise.grant is not None and promise.grant.governed
        # What a change of the work costs until it is noticed counts once it is not paid back.
        edge_s = settle_s if governed else 0.0
        made[key] = Tenure(
            position[core_type.name],
            len(position),
            core_type.coefficient if own is None else own,
            promise.booking.refcores,
            edge_s + (limit.period_us / 1e6 if limit else 0.0),
            core_type.clock_hz,
            core_type.smt_busy_factor,
            promise.booking.ips,
            core_type.nominal_ips,
            promise.burst.burst_s if promise.burst else 0.0,
        )
    return made
