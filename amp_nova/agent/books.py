"""The accounts of every vCPU from one cycle to the next."""

from collections.abc import Mapping
from dataclasses import replace

from amp_nova.core.account import RATIO_BUCKETS, Account, Tenure, bucket, settle
from amp_nova.core.contract import Promise
from amp_nova.core.losses import siblings_busy
from amp_nova.core.observation import Observation, VcpuKey, VcpuReading, usage
from amp_nova.core.topology import CoreType, Topology

NOTHING = Account()
_NO_RATIOS = (0,) * (len(RATIO_BUCKETS) + 1)


class Books:
    """Remembers the last readings and under what terms each vCPU has run since."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._time_ns = 0
        self._last: dict[VcpuKey, tuple[str, VcpuReading]] = {}
        self._tenures: Mapping[VcpuKey, Tenure] = {}
        self._accounts: dict[VcpuKey, Account] = {}
        self._ratios: dict[str, tuple[tuple[int, ...], float]] = {}

    def enter(self, seen: Observation) -> None:
        """Settle the interval since the last observation, and forget whatever is gone."""
        wall_ns = seen.time_ns - self._time_ns
        last: dict[VcpuKey, tuple[str, VcpuReading]] = {}
        accounts: dict[VcpuKey, Account] = {}
        busy = self._siblings_busy(seen, wall_ns)
        for reading in seen.domains:
            resource, incarnation = reading.domain.resource, reading.domain.incarnation
            for vcpu in reading.vcpus:
                key = (resource, vcpu.index)
                accounts[key] = self._settled(key, incarnation, vcpu, wall_ns, busy.get(key, 0.0))
                last[key] = (incarnation, vcpu)
        alive = {d.domain.resource for d in seen.domains}
        self._ratios = {r: v for r, v in self._ratios.items() if r in alive}
        # A vCPU that could not be read just now keeps its account for the next time.
        for key, account in self._accounts.items():
            if key not in accounts and key[0] in alive:
                accounts[key] = account
        self._last, self._accounts, self._time_ns = last, accounts, seen.time_ns

    def _siblings_busy(self, seen: Observation, wall_ns: int) -> Mapping[VcpuKey, float]:
        """How likely siblings were busy, where it is known what that costs."""
        if wall_ns <= 0 or all(t.smt_busy_factor is None for t in seen.topology.core_types):
            return {}
        ran = {}
        for reading in seen.domains:
            for vcpu in reading.vcpus:
                key = (reading.domain.resource, vcpu.index)
                before = self._last.get(key)
                if before is not None and before[0] == reading.domain.incarnation:
                    ran[key] = max(0, vcpu.run_ns - before[1].run_ns) / wall_ns
        return siblings_busy(seen, ran)

    def _settled(
        self, key: VcpuKey, incarnation: str, vcpu: VcpuReading, wall_ns: int, busy: float
    ) -> Account:
        account = self._accounts.get(key, NOTHING)
        before = self._last.get(key)
        tenure = self._tenures.get(key)
        if before is None or before[0] != incarnation or tenure is None:
            return account
        used = usage(before[1], vcpu, wall_ns)
        if used is None:
            return account
        if busy:
            used = replace(used, siblings_busy_ratio=busy)
        settled = settle(account, used, tenure, self._window_s)
        if settled.windows != account.windows and settled.ratio is not None:
            self._count(key[0], settled.ratio)
        return settled

    def _count(self, resource: str, ratio: float) -> None:
        counts, total = self._ratios.get(resource, (_NO_RATIOS, 0.0))
        at = bucket(ratio)
        self._ratios[resource] = ((*counts[:at], counts[at] + 1, *counts[at + 1 :]), total + ratio)

    def agree(self, tenures: Mapping[VcpuKey, Tenure]) -> None:
        """Say under what terms vCPUs run from now on; one that is left out is not accounted."""
        self._tenures = tenures

    def account(self, key: VcpuKey) -> Account:
        """The account of one vCPU so far."""
        return self._accounts.get(key, NOTHING)

    def ratios(self, resource: str) -> tuple[tuple[int, ...], float]:
        """Delivered ratios of an instance over windows: counts by bucket, and their sum."""
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
