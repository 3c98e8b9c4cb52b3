"""The host's own scheduler, as far as it matters for who runs where and how much.

Like CFS it does not know that cores differ. A vCPU that wakes goes back to its last pCPU if there
is room, else to the least loaded one it may use; one that runs stays where it is, until its pCPU is
overloaded and moving it evens out two of them. On one pCPU, vCPUs share the time equally, each up
to its bandwidth limit; what they leave is used by vCPUs that wait elsewhere and may run here.

A fluid model: shares are constant between two events, as if time slices and bandwidth periods were
infinitely short. A vCPU that yields runs in what the others leave: as SCHED_IDLE does, whose
weight of 3 in 1024 is taken for none. So nothing here has a period's jitter, and a limit gives
nothing away when it is written.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

EPSILON = 1e-9
YIELDING_WEIGHT = 3 / 1024
"""What a vCPU that yields weighs when loads are compared: as SCHED_IDLE does."""


class Runner(Protocol):
    """What the scheduler knows about a vCPU. ``order`` makes ties repeatable."""

    order: int
    pcpus: frozenset[int]
    limit_cores: float
    pcpu: int | None
    migrations: int
    cross_llc_migrations: int

    @property
    def yields(self) -> bool:
        """Whether it runs in what others leave."""
        ...


class Share:
    """What a vCPU gets: shares of pCPUs, and the share of time it is throttled."""

    __slots__ = ("cores", "throttled_ratio")

    def __init__(self, cores: dict[int, float], throttled_ratio: float) -> None:
        self.cores = cores
        self.throttled_ratio = throttled_ratio


def share_equally(limits_cores: Sequence[float], room_cores: float = 1.0) -> list[float]:
    """Divide a pCPU: equal shares, none above its limit, nothing left while one wants more."""
    shares = [0.0] * len(limits_cores)
    order = sorted(range(len(limits_cores)), key=limits_cores.__getitem__)
    left = room_cores
    for rank, index in enumerate(order):
        shares[index] = min(limits_cores[index], max(0.0, left) / (len(order) - rank))
        left -= shares[index]
    return shares


def throttled(
    limits_cores: Sequence[float], shares: Sequence[float], before_cores: float = 0.0
) -> list[float]:
    """Share of time each is throttled: what remains of a period after it has used its quota.

    All run equally fast until the one with the least quota has used it, then the others go on;
    they begin when those they yield to have had ``before_cores``.
    """
    result = [0.0] * len(shares)
    order = sorted(range(len(shares)), key=shares.__getitem__)
    used = before_cores
    for rank, index in enumerate(order):
        reached = used + (len(order) - rank) * shares[index]
        if limits_cores[index] < 1.0 and shares[index] >= limits_cores[index] - EPSILON:
            result[index] = max(0.0, 1.0 - reached)
        used += shares[index]
    return result


def weight_cores(vcpu: Runner) -> float:
    """What a vCPU adds to the load of its pCPU."""
    return vcpu.limit_cores * (YIELDING_WEIGHT if vcpu.yields else 1.0)


class Cores:
    """All pCPUs of a host with the vCPUs that are runnable on them."""

    def __init__(self, llc: Mapping[int, int | None], chance: Sequence[int]) -> None:
        """``llc`` names each pCPU's cache; of equally loaded pCPUs the first in ``chance`` wins."""
        self._llc = llc
        self._rank = {pcpu: rank for rank, pcpu in enumerate(chance)}
        self._queues: dict[int, list[Runner]] = {p: [] for p in sorted(llc)}
        self._load = dict.fromkeys(self._queues, 0.0)
        self._spare = dict.fromkeys(self._queues, 1.0)
        self._overloaded: set[int] = set()
        self._home: dict[Runner, tuple[float, float]] = {}
        self._short: set[Runner] = set()
        self._guests: set[Runner] = set()
        """vCPUs that run on other pCPUs besides their own, in what is left there."""
        self._dirty: set[int] = set()

    def wake(self, vcpu: Runner) -> None:
        """Put a vCPU that became runnable on a pCPU."""
        load, last = self._load, vcpu.pcpu
        if last in vcpu.pcpus and load[last] + weight_cores(vcpu) <= 1.0 + EPSILON:
            self._settle_on(vcpu, last)
            return
        least = min(load[p] for p in vcpu.pcpus) + EPSILON
        ties = [p for p in vcpu.pcpus if load[p] <= least]
        self._settle_on(vcpu, last if last in ties else min(ties, key=self._rank.__getitem__))

    def sleep(self, vcpu: Runner) -> None:
        """Take a vCPU off its pCPU; it remembers which one it was."""
        assert vcpu.pcpu is not None
        self._queues[vcpu.pcpu].remove(vcpu)
        self._home.pop(vcpu, None)
        self._short.discard(vcpu)
        self._touch(vcpu.pcpu)

    def changed(self, vcpu: Runner) -> None:
        """Take note that a runnable vCPU's affinity or limit is another one now."""
        assert vcpu.pcpu is not None
        if vcpu.pcpu in vcpu.pcpus:
            self._touch(vcpu.pcpu)
        else:
            self.sleep(vcpu)
            self.wake(vcpu)

    def share_out(self) -> dict[Runner, Share]:
        """Balance, and divide the pCPUs: the shares of all vCPUs whose shares may be others now."""
        if not self._dirty:
            return {}
        self._balance()
        affected: set[Runner] = set()
        for pcpu in self._dirty:
            self._divide(pcpu)
            affected.update(self._queues[pcpu])
        self._dirty.clear()
        affected |= {v for v in self._guests if v in self._home}
        extra = self._lend()
        affected |= extra.keys()
        self._guests = set(extra)
        return {v: self._share(v, extra.get(v)) for v in sorted(affected, key=lambda v: v.order)}

    def _share(self, vcpu: Runner, extra: dict[int, float] | None) -> Share:
        own, throttled_ratio = self._home[vcpu]
        assert vcpu.pcpu is not None
        cores = {vcpu.pcpu: own, **(extra or {})}
        if extra:
            throttled_ratio = 1.0 - sum(cores.values()) if self._is_full(vcpu, cores) else 0.0
        return Share(cores, max(0.0, throttled_ratio))

    def _is_full(self, vcpu: Runner, cores: Mapping[int, float]) -> bool:
        return sum(cores.values()) >= vcpu.limit_cores - EPSILON

    def _settle_on(self, vcpu: Runner, pcpu: int) -> None:
        if vcpu.pcpu is not None and vcpu.pcpu != pcpu:
            vcpu.migrations += 1
            vcpu.cross_llc_migrations += self._llc[vcpu.pcpu] != self._llc[pcpu]
        vcpu.pcpu = pcpu
        self._queues[pcpu].append(vcpu)
        self._touch(pcpu)

    def _touch(self, pcpu: int) -> None:
        # Summed anew, not corrected: rounding errors would add up.
        queue = self._queues[pcpu]
        self._load[pcpu] = sum([weight_cores(v) for v in queue])
        if sum([v.limit_cores for v in queue]) > 1.0 + EPSILON:
            self._overloaded.add(pcpu)
        else:
            self._overloaded.discard(pcpu)
        self._dirty.add(pcpu)

    def _balance(self) -> None:
        """Move vCPUs off overloaded pCPUs while that evens out two of them."""
        work = sorted(self._dirty, reverse=True)
        while work and self._overloaded:
            pcpu = work.pop()
            move = self._pull(pcpu) or self._push(pcpu)
            if move is None:
                continue
            vcpu, target = move
            source = vcpu.pcpu
            self.sleep(vcpu)
            self._settle_on(vcpu, target)
            # Every move makes the sum of squared loads smaller, so this comes to an end.
            work += [p for p in (source, target) if p is not None]

    def _pull(self, target: int) -> tuple[Runner, int] | None:
        """A vCPU that had better be on this pCPU: from the most loaded that has one."""
        load = self._load
        mine = load[target] + EPSILON
        busier = [p for p in self._overloaded if load[p] > mine]
        for source in sorted(busier, key=lambda p: (-load[p], self._rank[p])):
            for vcpu in reversed(self._queues[source]):
                if weight_cores(vcpu) + mine < load[source] and target in vcpu.pcpus:
                    return vcpu, target
        return None

    def _push(self, source: int) -> tuple[Runner, int] | None:
        """A vCPU of this pCPU that had better be on another one."""
        if source not in self._overloaded:
            return None
        load = self._load
        for vcpu in reversed(self._queues[source]):
            most = load[source] - weight_cores(vcpu) - EPSILON
            targets = [p for p in vcpu.pcpus if load[p] < most]
            if targets:
                return vcpu, min(targets, key=lambda p: (load[p], self._rank[p]))
        return None

    def _divide(self, pcpu: int) -> None:
        queue = self._queues[pcpu]
        if len(queue) == 1:
            (alone,) = queue
            limit = alone.limit_cores
            self._home[alone] = (limit, 1.0 - limit)
            self._spare[pcpu] = 1.0 - limit
            self._short.discard(alone)
            return
        used = 0.0
        for yields in (False, True):
            rank = [v for v in queue if v.yields is yields]
            limits = [v.limit_cores for v in rank]
            shares = share_equally(limits, 1.0 - used)
            waits = throttled(limits, shares, used)
            used += sum(shares)
            for vcpu, share, throttled_ratio in zip(rank, shares, waits, strict=True):
                self._home[vcpu] = (share, throttled_ratio)
                if share < vcpu.limit_cores - EPSILON:
                    self._short.add(vcpu)
                else:
                    self._short.discard(vcpu)
        self._spare[pcpu] = 1.0 - used

    def _lend(self) -> dict[Runner, dict[int, float]]:
        """What pCPUs have left, to vCPUs that wait elsewhere and may run there."""
        extra: dict[Runner, dict[int, float]] = {}
        if not self._short:
            return extra
        lack = {v: v.limit_cores - self._home[v][0] for v in self._short}
        for pcpu in self._with_spare():
            left = self._spare[pcpu]
            for yields in (False, True):
                here = (v for v in lack if v.yields is yields and pcpu in v.pcpus)
                waiting = sorted((v for v in here if lack[v] > EPSILON), key=lambda v: v.order)
                shares = share_equally([lack[v] for v in waiting], left)
                left -= sum(shares)
                for vcpu, share in zip(waiting, shares, strict=True):
                    lack[vcpu] -= share
                    extra.setdefault(vcpu, {})[pcpu] = share
        return extra

    def _with_spare(self) -> Iterable[int]:
        spare = (p for p, left in self._spare.items() if left > EPSILON)
        return sorted(spare, key=lambda p: self._rank[p])
