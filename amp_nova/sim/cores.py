"""The simulated host's own scheduler: which vCPU runs on which pCPU, and for what share of time.

Like CFS it does not know that cores differ. A vCPU that wakes returns to its last pCPU if its load
fits there, else goes to the least loaded pCPU it may use. A running vCPU stays where it is until
its pCPU is overloaded and a move evens out the load. The vCPUs on a pCPU share it by their weights,
each up to its bandwidth limit; the time they leave idle goes to vCPUs that wait on other pCPUs.

This is a fluid model: shares are constant between two events, as if time slices and bandwidth
periods were infinitely short, so there is no jitter within a period and writing a limit refills
nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

from amp_nova.model.cpu_weight import DEFAULT
from amp_nova.sim.vcpu import Share, SimVcpu

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
    """What a vCPU adds to the load of its pCPU: next to nothing beside bookings."""
    return vcpu.limit_cores * min(1.0, vcpu.weight / DEFAULT)


def place(vcpu: SimVcpu, pcpu: int, llc: Mapping[int, int | None]) -> None:
    """Put a vCPU on a pCPU and count the migration; ``llc`` is the cache of each pCPU."""
    if vcpu.pcpu is not None and vcpu.pcpu != pcpu:
        vcpu.moves.total += 1
        vcpu.moves.cross_llc += llc[vcpu.pcpu] != llc[pcpu]
    vcpu.pcpu = pcpu


class Cores:
    """All pCPUs of a host and the vCPUs that are runnable on them."""

    def __init__(self, llc: Mapping[int, int | None], preference: Sequence[int]) -> None:
        """``llc`` is the cache of each pCPU; ``preference`` orders equally loaded pCPUs."""
        self._llc = llc
        self._rank = {pcpu: rank for rank, pcpu in enumerate(preference)}
        self._queues: dict[int, list[SimVcpu]] = {p: [] for p in sorted(llc)}
        self._load = dict.fromkeys(self._queues, 0.0)
        self._spare = dict.fromkeys(self._queues, 1.0)
        self._overloaded: set[int] = set()
        self._own: dict[SimVcpu, tuple[float, float]] = {}
        """Share of its own pCPU and throttled share of every runnable vCPU."""
        self._short: set[SimVcpu] = set()
        """vCPUs that get less on their own pCPU than their limit allows."""
        self._borrowers: set[SimVcpu] = set()
        """vCPUs that also run in the spare time of other pCPUs."""
        self._dirty: set[int] = set()

    def wake(self, vcpu: SimVcpu) -> None:
        """Put a vCPU that became runnable on a pCPU."""
        load, last = self._load, vcpu.pcpu
        if last in vcpu.pcpus and load[last] + load_cores(vcpu) <= 1.0 + EPSILON:
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

    def reschedule(self) -> dict[SimVcpu, Share]:
        """Balance the load and divide the pCPUs; returns every share that may have changed."""
        if not self._dirty:
            return {}
        self._balance()
        affected: set[SimVcpu] = set()
        for pcpu in self._dirty:
            self._divide(pcpu)
            affected.update(self._queues[pcpu])
        self._dirty.clear()
        affected |= {v for v in self._borrowers if v in self._own}
        borrowed = self._lend()
        affected |= borrowed.keys()
        self._borrowers = set(borrowed)
        return {v: self._share(v, borrowed.get(v)) for v in sorted(affected, key=lambda v: v.order)}

    def _share(self, vcpu: SimVcpu, borrowed: dict[int, float] | None) -> Share:
        own, throttled_ratio = self._own[vcpu]
        assert vcpu.pcpu is not None
        cores = {vcpu.pcpu: own, **(borrowed or {})}
        if borrowed:
            total = sum(cores.values())
            throttled_ratio = 1.0 - total if total >= vcpu.limit_cores - EPSILON else 0.0
        return Share(cores, max(0.0, throttled_ratio))

    def _enqueue(self, vcpu: SimVcpu, pcpu: int) -> None:
        place(vcpu, pcpu, self._llc)
        self._queues[pcpu].append(vcpu)
        self._touch(pcpu)

    def _touch(self, pcpu: int) -> None:
        # Summed again rather than adjusted, so that rounding errors do not accumulate.
        queue = self._queues[pcpu]
        self._load[pcpu] = sum([load_cores(v) for v in queue])
        if sum([v.limit_cores for v in queue]) > 1.0 + EPSILON:
            self._overloaded.add(pcpu)
        else:
            self._overloaded.discard(pcpu)
        self._dirty.add(pcpu)

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
        if len(queue) == 1:  # the common case, without the arithmetic
            (alone,) = queue
            limit = alone.limit_cores
            self._own[alone] = (limit, 1.0 - limit)
            self._spare[pcpu] = 1.0 - limit
            self._short.discard(alone)
            return
        limits, weights = [v.limit_cores for v in queue], [v.weight for v in queue]
        shares = share(limits, weights)
        waits = throttled(limits, weights, shares)
        for vcpu, cores, throttled_ratio in zip(queue, shares, waits, strict=True):
            self._own[vcpu] = (cores, throttled_ratio)
            if cores < vcpu.limit_cores - EPSILON:
                self._short.add(vcpu)
            else:
                self._short.discard(vcpu)
        self._spare[pcpu] = 1.0 - sum(shares)

    def _lend(self) -> dict[SimVcpu, dict[int, float]]:
        """Give the spare time of pCPUs to vCPUs that wait elsewhere and may run there."""
        borrowed: dict[SimVcpu, dict[int, float]] = {}
        if not self._short:
            return borrowed
        lack = {v: v.limit_cores - self._own[v][0] for v in self._short}
        for pcpu in self._with_spare():
            here = (v for v in lack if lack[v] > EPSILON and pcpu in v.pcpus)
            waiting = sorted(here, key=lambda v: v.order)
            weights = [v.weight for v in waiting]
            shares = share([lack[v] for v in waiting], weights, self._spare[pcpu])
            for vcpu, cores in zip(waiting, shares, strict=True):
                lack[vcpu] -= cores
                borrowed.setdefault(vcpu, {})[pcpu] = cores
        return borrowed

    def _with_spare(self) -> Iterable[int]:
        spare = (p for p, left in self._spare.items() if left > EPSILON)
        return sorted(spare, key=self._rank.__getitem__)
