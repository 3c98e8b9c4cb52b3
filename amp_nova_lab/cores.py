# SPDX-License-Identifier: Apache-2.0
"""The simulated host's own scheduler: which vCPU runs on which pCPU, and for what share of time.

Like CFS it does not know that cores differ. A vCPU that wakes returns to its last pCPU if it fits
there, else goes to the least loaded pCPU it may use. A running vCPU stays where it is until its
pCPU is overloaded and a move evens out the load. The CPU weight of a guest is divided among its
runnable vCPUs (``kernel/sched/fair.c``, ``calc_group_shares``). Those on a pCPU share it by these
weights, each up to its bandwidth limit. Where that is less than vCPUs with the same affinity get on
other pCPUs, the load balancer moves them to and fro several times a second, so they share all of
their time on all of these pCPUs. The time that is left goes to vCPUs that wait on other pCPUs.

This is a fluid model: shares are constant between two events, as if time slices and bandwidth
periods were infinitely short, so there is no jitter within a period and writing a limit refills
nothing.
"""

from collections.abc import Mapping, Sequence
from operator import sub

from amp_nova.model.cpu_weight import DEFAULT
from amp_nova_lab.guest import RunningShare, SimVcpu

EPSILON = 1e-9


def share(
    limits_cores: Sequence[float], weights: Sequence[float], capacity_cores: float = 1.0
) -> list[float]:
    """Divide a pCPU by weights: no share above its limit, and no time wasted (max-min fair)."""
    shares = [0.0] * len(limits_cores)
    left, total = capacity_cores, float(sum(weights))
    for index in sorted(range(len(shares)), key=lambda i: limits_cores[i] / weights[i]):
        shares[index] = min(limits_cores[index], max(0.0, left) * weights[index] / total)
        left, total = left - shares[index], total - weights[index]
    return shares


def throttled(
    limits_cores: Sequence[float], weights: Sequence[float], shares: Sequence[float]
) -> list[float]:
    """Share of time each vCPU is throttled: the rest of a period once its quota is used up.

    All run as fast as their weights permit until the first of them has used up its quota, then the
    others continue.
    """
    result = [0.0] * len(shares)
    used, total = 0.0, float(sum(weights))
    for index in sorted(range(len(shares)), key=lambda i: shares[i] / weights[i]):
        reached = used + total * shares[index] / weights[index]
        if limits_cores[index] < 1.0 and shares[index] >= limits_cores[index] - EPSILON:
            result[index] = max(0.0, 1.0 - reached)
        used, total = used + shares[index], total - weights[index]
    return result


def load_cores(vcpu: SimVcpu) -> float:
    """What a vCPU adds to the load that is balanced: its demand, by its weight."""
    return vcpu.limit_cores * min(1.0, vcpu.weight / DEFAULT)


def place(vcpu: SimVcpu, pcpu: int, llc: Mapping[int, int | None]) -> None:
    """Put a vCPU on a pCPU and count the migration; ``llc`` is the cache of each pCPU."""
    if vcpu.pcpu is not None and vcpu.pcpu != pcpu:
        vcpu.moves.total += 1
        vcpu.moves.cross_llc += llc[vcpu.pcpu] != llc[pcpu]
    vcpu.pcpu = pcpu


class Cores:
    """All pCPUs of a host and the vCPUs that are runnable on them."""

    def __init__(
        self, llc: Mapping[int, int | None], preference: Sequence[int], for_vcpus: float = 1.0
    ) -> None:
        """``llc`` is the cache of each pCPU; ``preference`` orders equally loaded pCPUs.

        ``for_vcpus``: the share of each pCPU that other processes leave to vCPUs.
        """
        self._llc = llc
        self._for_vcpus = for_vcpus
        self._rank = {pcpu: rank for rank, pcpu in enumerate(preference)}
        self._queues: dict[int, list[SimVcpu]] = {p: [] for p in sorted(llc)}
        self._load = dict.fromkeys(self._queues, 0.0)
        self._spare = dict.fromkeys(self._queues, for_vcpus)
        self._overloaded: set[int] = set()
        self._own: dict[SimVcpu, tuple[float, float]] = {}
        """Share of its own pCPU and throttled share of every runnable vCPU."""
        self._short: set[SimVcpu] = set()
        """vCPUs that get less on their own pCPU than their limit allows."""
        self._elsewhere: set[SimVcpu] = set()
        """vCPUs that also run on other pCPUs than their own."""
        self._dirty: set[int] = set()

    def wake(self, vcpu: SimVcpu) -> None:
        """Put a vCPU that became runnable on a pCPU."""
        load, last = self._load, vcpu.pcpu
        if last in vcpu.pcpus and self._demand_cores(last) + vcpu.limit_cores <= 1.0 + EPSILON:
            self._enqueue(vcpu, last)
            return
        least = min(load[p] for p in vcpu.pcpus) + EPSILON
        ties = [p for p in vcpu.pcpus if load[p] <= least]
        self._enqueue(vcpu, last if last in ties else min(ties, key=self._rank.__getitem__))

    def sleep(self, vcpu: SimVcpu) -> None:
        """Take a vCPU off its pCPU, which it remembers."""
        assert vcpu.pcpu is not None
        self._queues[vcpu.pcpu].remove(vcpu)
        self._own.pop(vcpu, None)
        self._short.discard(vcpu)
        self._touch(vcpu.pcpu)

    def changed(self, vcpu: SimVcpu) -> None:
        """Take a new affinity, limit or class of a runnable vCPU into account."""
        assert vcpu.pcpu is not None
        if vcpu.pcpu in vcpu.pcpus:
            self._touch(vcpu.pcpu)
        else:
            self.sleep(vcpu)
            self.wake(vcpu)

    def reschedule(self) -> dict[SimVcpu, RunningShare]:
        """Balance the load and divide the pCPUs; returns every share that may have changed."""
        if not self._dirty:
            return {}
        self._balance()
        affected: set[SimVcpu] = set()
        for pcpu in self._dirty:
            self._divide(pcpu)
            affected.update(self._queues[pcpu])
        self._dirty.clear()
        affected |= {v for v in self._elsewhere if v in self._own}
        cores = self._pool()
        self._lend(cores)
        affected |= cores.keys()
        self._elsewhere = set(cores)
        return {v: self._share(v, cores.get(v)) for v in sorted(affected, key=lambda v: v.order)}

    def _share(self, vcpu: SimVcpu, cores: dict[int, float] | None) -> RunningShare:
        own, throttled_ratio = self._own[vcpu]
        assert vcpu.pcpu is not None
        if cores is None:
            return RunningShare({vcpu.pcpu: own}, max(0.0, throttled_ratio))
        total = sum(cores.values())
        limited = total >= vcpu.limit_cores - EPSILON
        return RunningShare(cores, max(0.0, 1.0 - total) if limited else 0.0)

    def _enqueue(self, vcpu: SimVcpu, pcpu: int) -> None:
        place(vcpu, pcpu, self._llc)
        self._queues[pcpu].append(vcpu)
        self._touch(pcpu)

    def _touch(self, pcpu: int) -> None:
        # Summed again rather than adjusted, so that rounding errors do not accumulate.
        self._load[pcpu] = sum([load_cores(v) for v in self._queues[pcpu]])
        if self._demand_cores(pcpu) > 1.0 + EPSILON:
            self._overloaded.add(pcpu)
        else:
            self._overloaded.discard(pcpu)
        self._dirty.add(pcpu)

    def _demand_cores(self, pcpu: int) -> float:
        """The cores that the vCPUs on a pCPU would use if each were alone on it."""
        return sum([v.limit_cores for v in self._queues[pcpu]])

    def _balance(self) -> None:
        """Move vCPUs off overloaded pCPUs while that evens out the load of two of them."""
        work = sorted(self._dirty, reverse=True)
        while work and self._overloaded:
            pcpu = work.pop()
            move = self._pull(pcpu) or self._push(pcpu)
            if move is None:
                continue
            vcpu, target = move
            source = vcpu.pcpu
            self.sleep(vcpu)
            self._enqueue(vcpu, target)
            # Terminates: every move reduces the sum of squared loads.
            work += [p for p in (source, target) if p is not None]

    def _pull(self, target: int) -> tuple[SimVcpu, int] | None:
        """A vCPU to bring to this pCPU, from the most loaded pCPU that has one."""
        load = self._load
        mine = load[target] + EPSILON
        busier = [p for p in self._overloaded if load[p] > mine]
        for source in sorted(busier, key=lambda p: (-load[p], self._rank[p])):
            for vcpu in reversed(self._queues[source]):
                if load_cores(vcpu) + mine < load[source] and target in vcpu.pcpus:
                    return vcpu, target
        return None

    def _push(self, source: int) -> tuple[SimVcpu, int] | None:
        """A vCPU to move away from this pCPU, to the least loaded pCPU it may use."""
        if source not in self._overloaded:
            return None
        load = self._load
        for vcpu in reversed(self._queues[source]):
            most = load[source] - load_cores(vcpu) - EPSILON
            targets = [p for p in vcpu.pcpus if load[p] < most]
            if targets:
                return vcpu, min(targets, key=lambda p: (load[p], self._rank[p]))
        return None

    def _divide(self, pcpu: int) -> None:
        queue = self._queues[pcpu]
        if len(queue) == 1 and queue[0].limit_cores <= self._for_vcpus:
            (alone,) = queue  # the common case, without the arithmetic
            limit = alone.limit_cores
            self._own[alone] = (limit, 1.0 - limit)
            self._spare[pcpu] = self._for_vcpus - limit
            self._short.discard(alone)
            return
        limits, weights = [v.limit_cores for v in queue], [v.weight for v in queue]
        shares = share(limits, weights, self._for_vcpus)
        waits = throttled(limits, weights, shares)
        for vcpu, cores, throttled_ratio in zip(queue, shares, waits, strict=True):
            self._own[vcpu] = (cores, throttled_ratio)
            if cores < vcpu.limit_cores - EPSILON:
                self._short.add(vcpu)
            else:
                self._short.discard(vcpu)
        self._spare[pcpu] = self._for_vcpus - sum(shares)

    def _pool(self) -> dict[SimVcpu, dict[int, float]]:
        """What vCPUs with the same affinity get whose pCPUs are not equally crowded."""
        pooled: dict[SimVcpu, dict[int, float]] = {}
        for pcpus in dict.fromkeys(v.pcpus for v in self._short if len(v.pcpus) > 1):
            members = [v for v in self._own if v.pcpus == pcpus]
            own = [self._own[v][0] for v in members]
            total = sum(own)
            shares = share([v.limit_cores for v in members], [v.weight for v in members], total)
            if total <= EPSILON or max(map(abs, map(sub, shares, own))) <= EPSILON:
                continue
            time: dict[int, float] = {}
            for vcpu, cores in zip(members, own, strict=True):
                assert vcpu.pcpu is not None
                time[vcpu.pcpu] = time.get(vcpu.pcpu, 0.0) + cores
            for vcpu, cores in zip(members, shares, strict=True):
                pooled[vcpu] = {p: cores * part / total for p, part in time.items()}
        return pooled

    def _lend(self, cores_of: dict[SimVcpu, dict[int, float]]) -> None:
        """Give the spare time of pCPUs to vCPUs that wait elsewhere and may run there."""
        lack = {}
        for vcpu in self._short | cores_of.keys():
            assert vcpu.pcpu is not None
            cores = sum(cores_of[vcpu].values()) if vcpu in cores_of else self._own[vcpu][0]
            lack[vcpu] = vcpu.limit_cores - cores
        spare = (p for p in self._rank if self._spare[p] > EPSILON)  # in the order of preference
        for pcpu in spare if lack else ():
            here = (v for v in lack if lack[v] > EPSILON and pcpu in v.pcpus)
            waiting = sorted(here, key=lambda v: v.order)
            weights = [v.weight for v in waiting]
            shares = share([lack[v] for v in waiting], weights, self._spare[pcpu])
            for vcpu, cores in zip(waiting, shares, strict=True):
                assert vcpu.pcpu is not None
                lack[vcpu] -= cores
                by_pcpu = cores_of.setdefault(vcpu, {vcpu.pcpu: self._own[vcpu][0]})
                by_pcpu[pcpu] = by_pcpu.get(pcpu, 0.0) + cores


class PreferFast(Cores):
    """The same where Linux knows which CPUs are fast.

    Linux never leaves these idle while slower ones are in use, in two ways
    (``kernel/sched/fair.c``):

    * ``SD_ASYM_PACKING`` (x86: hybrid CPUs, and preferred cores by ITMT or amd_pstate): an idle CPU
      pulls even the only task of a CPU with a lower priority, from the lowest priority first, if
      all threads of its own core are idle (``sched_asym``, ``update_sd_pick_busiest``,
      ``asym_active_balance``). Wakeups have no preference.
    * ``SD_ASYM_CPUCAPACITY`` (Arm, RISC-V, and hybrid x86 without SMT): an idle CPU pulls a task
      that needs more than 80 % of the capacity of its CPU (``update_misfit_status``,
      ``update_sd_pick_busiest``). Such a task wakes up on an idle CPU that is large enough, or else
      on the largest that is idle (``select_idle_capacity``).

    One model is enough for both: a pull at once makes up for a wakeup without preference, and a
    vCPU that always works is a misfit everywhere but on the fastest core type. Where it differs
    from Linux, Linux does less for fast cores. Left out are:

    * the time until an idle CPU pulls, some milliseconds (``nohz_balancer_kick``): with 4 or 12 ms,
      all vCPUs together do less than 1 % less on the mixes of ``tests/benchmarks/test_mixes.py``;
    * small tasks, which stay on slow CPUs if capacity decides, and Energy Aware Scheduling;
    * the limits of scheduling domains, such as NUMA nodes;
    * that the load of crowded CPUs is balanced by their capacity;
    * that an idle core of any speed relieves a core with two busy threads.
    """

    def __init__(
        self,
        llc: Mapping[int, int | None],
        preference: Sequence[int],
        speeds: Mapping[int, float],
        siblings: Mapping[int, Sequence[int]],
        for_vcpus: float = 1.0,
    ) -> None:
        """``speeds``: of each pCPU; ``siblings``: the other hardware threads of its core."""
        self._fastest_first = sorted(preference, key=lambda p: -speeds[p])
        super().__init__(llc, self._fastest_first, for_vcpus)
        self._speeds, self._siblings = speeds, siblings

    def _balance(self) -> None:
        super()._balance()
        # Terminates: a move to a faster pCPU that is idle does not make the loads less even.
        while (move := self._pull_up()) is not None:
            self.sleep(move[0])
            self._enqueue(*move)
            super()._balance()

    def _pull_up(self) -> tuple[SimVcpu, int] | None:
        """A vCPU to bring to an idle pCPU, from the slowest pCPU that has one."""
        queues, speeds = self._queues, self._speeds
        for target in self._fastest_first:
            if queues[target] or any(queues[p] for p in self._siblings[target]):
                continue
            for source in reversed(self._fastest_first):
                if speeds[source] >= speeds[target]:
                    break
                for vcpu in reversed(queues[source]):
                    if target in vcpu.pcpus:
                        return vcpu, target
        return None
