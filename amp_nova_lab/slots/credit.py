# SPDX-License-Identifier: Apache-2.0
"""Credit and AASH, slot by slot: the schedulers that chen2014 compares its algorithm with.

Credit. Each cycle hands out credits by weight to the instances that want to run, at most one core's
worth per vCPU, split evenly among an instance's vCPUs. A slot costs one credit. A vCPU runs for up
to three slots; vCPUs with credits precede those without, and a vCPU that just woke with credits
precedes both. A core whose queue has no vCPU with credits takes one from another core's queue. Core
speed plays no part.

AASH. Like Credit, but the slots of fast cores are handed out by weight as well, or, as printed, in
equal parts to all vCPUs. A fast core runs
the vCPU with the most of them left, wherever that is; the displaced vCPU takes its place.

Source. chen2014 section 4 and kwon2011 section 3.1, which describe both; modelled on Xen's
behaviour, not on its code. Unlike Xen, it preempts only at the edges of slots (except for a vCPU
that woke), caps credits at one cycle's worth, and moves cost nothing.
"""

import random

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.placing.core_shares import water_fill
from amp_nova_lab.guest import SimVcpu
from amp_nova_lab.slots.board import Board

SLICE_SLOTS = 3
WOKEN, UNDER, OVER = range(3)


class CreditSlots:
    """Credits by weight, cores by chance."""

    def __init__(self, board: Board, seed: int) -> None:
        self._board = board
        self._credit: dict[VcpuKey, float] = {}
        self._ran: dict[VcpuKey, int] = {}
        self._woken: set[VcpuKey] = set()
        self._preference = list(board.ids)
        random.Random(f"{seed} slots").shuffle(self._preference)

    def wake(self, vcpu: SimVcpu) -> None:
        """Put it on its home if idle, else an idle core, else home; at first the least crowded."""
        board = self._board
        usable = board.allowed(vcpu) & vcpu.pcpus or board.allowed(vcpu)
        load = {p: board.load(p) for p in self._preference if p in usable}
        least = min(load, key=load.__getitem__)
        home = vcpu.pcpu
        if home not in load or (load[home] and not load[least]):
            home = least
        if self._credit.setdefault(vcpu.key, 0.0) > 0.0:
            self._woken.add(vcpu.key)
        board.enter(vcpu, home)

    def end(self, name: str) -> None:
        """Nothing to do: a vCPU that sleeps earns no credits."""

    def debit(self, vcpu: SimVcpu, pcpu: int) -> None:
        """A slot costs one credit on any core."""
        self._credit[vcpu.key] -= 1.0
        self._ran[vcpu.key] = self._ran.get(vcpu.key, 0) + 1
        self._woken.discard(vcpu.key)

    def allocate(self, slots: int) -> None:
        """Hand out credits by weight to instances that want to run."""
        _hand_out(self._board, self._credit, slots, slots * len(self._board.ids))

    def select(self) -> None:
        """Choose a vCPU for each core independently."""
        for pcpu in self._preference:
            self._choose(pcpu)
        self.fill()

    def fill(self) -> None:
        """Find work for idle cores, and cores for vCPUs that woke."""
        for pcpu in self._preference:
            current = self._board.running[pcpu]
            woken = any(self._rank(v) == WOKEN for v in self._board.queue[pcpu])
            if current is None or (woken and self._rank(current) != WOKEN):
                self._choose(pcpu)

    def _rank(self, vcpu: SimVcpu) -> int:
        if vcpu.key in self._woken:
            return WOKEN
        return UNDER if self._credit.get(vcpu.key, 0.0) > 0.0 else OVER

    def _choose(self, pcpu: int) -> None:
        board = self._board
        current = board.running[pcpu]
        best = min(board.queue[pcpu], key=self._rank, default=None)
        if current is not None:
            expired = self._ran.get(current.key, 0) >= SLICE_SLOTS
            if not expired and (best is None or self._rank(best) >= self._rank(current)):
                return
            board.wait(current, pcpu)
            best = min(board.queue[pcpu], key=self._rank)
        if best is None or self._rank(best) == OVER:
            best = self._steal(pcpu, UNDER) or best or self._steal(pcpu, OVER)
        if best is not None:
            self._ran[best.key] = 0
            board.run(best, pcpu)

    def _steal(self, pcpu: int, rank: int) -> SimVcpu | None:
        """The first vCPU of at least this rank in the other queues, from the next core on."""
        ids = self._board.ids
        at = ids.index(pcpu)
        for other in ids[at + 1 :] + ids[:at]:
            for vcpu in self._board.queue[other]:
                if self._rank(vcpu) <= rank and pcpu in self._board.allowed(vcpu):
                    return vcpu
        return None


class AashSlots(CreditSlots):
    """Credit, with the slots of fast cores handed out by weight, vCPU by vCPU."""

    def __init__(self, board: Board, seed: int, *, by_vcpu: bool = False) -> None:
        """``by_vcpu``: the slots of fast cores are handed out evenly to all vCPUs."""
        super().__init__(board, seed)
        self._by_vcpu = by_vcpu
        self._fast: dict[VcpuKey, float] = {}

    def debit(self, vcpu: SimVcpu, pcpu: int) -> None:
        """A slot on a fast core also costs one of its fast slots."""
        super().debit(vcpu, pcpu)
        if pcpu in self._board.fast:
            self._fast[vcpu.key] = self._fast.get(vcpu.key, 0.0) - 1.0

    def allocate(self, slots: int) -> None:
        """Hand out fast cores' slots by weight too."""
        super().allocate(slots)
        total = slots * len(self._board.fast)
        _hand_out(self._board, self._fast, slots, total, by_vcpu=self._by_vcpu)

    def select(self) -> None:
        """Each fast core takes the vCPU that is owed most; Credit fills the other cores."""
        board = self._board
        for pcpu in board.fast:
            current = board.running[pcpu]
            if current and self._owed(current) and self._ran[current.key] < SLICE_SLOTS:
                continue
            able = [
                v
                for v in board
                if self._owed(v)
                and pcpu in board.allowed(v)
                and (v is current or not (board.runs(v) and v.pcpu in board.fast))
            ]
            chosen = min(able, key=lambda v: (-round(self._fast[v.key], 6), v.order), default=None)
            if chosen is not None:
                self._swap(chosen, pcpu)
        super().select()

    def _owed(self, vcpu: SimVcpu) -> bool:
        return self._fast.get(vcpu.key, 0.0) > 0.0 and self._rank(vcpu) != OVER

    def _swap(self, vcpu: SimVcpu, pcpu: int) -> None:
        board = self._board
        current, source = board.running[pcpu], vcpu.pcpu
        self._ran[vcpu.key] = 0
        if current is vcpu or source is None:
            return
        board.run(vcpu, pcpu)
        if current is not None:
            board.wait(current, source if source in board.allowed(current) else pcpu)


def _hand_out(
    board: Board,
    credit: dict[VcpuKey, float],
    slots: int,
    total: float,
    *,
    by_vcpu: bool = False,
) -> None:
    """One cycle's credits by weight; what an instance cannot use goes to the others."""
    active: dict[str, list[SimVcpu]] = {}
    for vcpu in board:
        active.setdefault(vcpu.key[0], []).append(vcpu)
    lacks = [float(slots * len(vcpus)) for vcpus in active.values()]
    weights = [
        float(len(vcpus)) if by_vcpu else vcpus[0].guest.guest.booking.weight
        for vcpus in active.values()
    ]
    for vcpus, part in zip(active.values(), water_fill(total, lacks, weights), strict=True):
        for vcpu in vcpus:
            had = credit.get(vcpu.key, 0.0)
            credit[vcpu.key] = max(-slots, min(slots, had + part / len(vcpus)))
