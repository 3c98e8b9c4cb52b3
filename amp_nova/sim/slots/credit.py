"""Credit and AASH, slot by slot: what chen2014 measures its algorithm against.

Credit. Each cycle credits are handed out by weight to the instances that want to run, at most a
core for each vCPU, and evenly among an instance's vCPUs; a slot costs one. A vCPU runs for up to
three slots; who has credits comes before who has none, who just woke and has some comes first. A
core that has nobody with credits takes one from another core's queue. Speed plays no part.

AASH. As Credit, and in addition the fast cores' slots are handed out by weight. A fast core runs
who has most of them left, fetched from wherever it is; whoever had the core takes that place.

Source. chen2014 section 4 and kwon2011 section 3.1, which describe both; written after Xen's
behaviour, not its code. Not as in Xen: preemption at the edges of slots only (save for who woke),
credits kept within a cycle's worth, and no cost of moving.
"""

import random

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.placing.core_shares import water_fill
from amp_nova.sim.guest import SimVcpu
from amp_nova.sim.slots.board import Board, key

SLICE_SLOTS = 3
WOKEN, UNDER, OVER = range(3)


class CreditSlots:
    """Credits by weight, cores by chance."""

    def __init__(self, board: Board, seed: int) -> None:
        self._board = board
        self._credit: dict[VcpuKey, float] = {}
        self._ran: dict[VcpuKey, int] = {}
        self._woken: set[VcpuKey] = set()
        self._chance = list(board.ids)
        random.Random(f"{seed} slots").shuffle(self._chance)

    def wake(self, vcpu: SimVcpu) -> None:
        """Home if that is idle, else an idle core, else home; at first where fewest are."""
        board = self._board
        begins = board.allowed(vcpu) & vcpu.pcpus or board.allowed(vcpu)
        usable = [p for p in self._chance if p in begins]
        count = {p: len(board.queue[p]) + (board.running[p] is not None) for p in usable}
        least = min(usable, key=count.__getitem__)
        home = vcpu.pcpu
        if home not in count or (count[home] and not count[least]):
            home = least
        if self._credit.setdefault(key(vcpu), 0.0) > 0.0:
            self._woken.add(key(vcpu))
        board.enter(vcpu, home)

    def end(self, name: str) -> None:
        """Who is asleep earns nothing anyway."""

    def charge(self, vcpu: SimVcpu, pcpu: int) -> None:
        """A slot costs one credit, wherever."""
        self._credit[key(vcpu)] -= 1.0
        self._ran[key(vcpu)] = self._ran.get(key(vcpu), 0) + 1
        self._woken.discard(key(vcpu))

    def allocate(self, slots: int) -> None:
        """Credits by weight to instances that want to run, at most a core for each vCPU."""
        _hand_out(self._board, self._credit, slots, slots * len(self._board.ids))

    def select(self) -> None:
        """Every core for itself."""
        for pcpu in self._chance:
            self._choose(pcpu)
        self.fill()

    def fill(self) -> None:
        """Work for cores that idle, and cores for those that woke."""
        for pcpu in self._chance:
            current = self._board.running[pcpu]
            woken = any(self._rank(v) == WOKEN for v in self._board.queue[pcpu])
            if current is None or (woken and self._rank(current) != WOKEN):
                self._choose(pcpu)

    def _rank(self, vcpu: SimVcpu) -> int:
        if key(vcpu) in self._woken:
            return WOKEN
        return UNDER if self._credit.get(key(vcpu), 0.0) > 0.0 else OVER

    def _choose(self, pcpu: int) -> None:
        board = self._board
        current = board.running[pcpu]
        best = min(board.queue[pcpu], key=self._rank, default=None)
        if current is not None:
            tired = self._ran.get(key(current), 0) >= SLICE_SLOTS
            if not tired and (best is None or self._rank(best) >= self._rank(current)):
                return
            board.wait(current, pcpu)
            best = min(board.queue[pcpu], key=self._rank)
        if best is None or self._rank(best) == OVER:
            best = self._steal(pcpu, UNDER) or best or self._steal(pcpu, OVER)
        if best is not None:
            self._ran[key(best)] = 0
            board.run(best, pcpu)

    def _steal(self, pcpu: int, rank: int) -> SimVcpu | None:
        """The first of the other queues, from the next core on, that has at least this rank."""
        ids = self._board.ids
        at = ids.index(pcpu)
        for other in ids[at + 1 :] + ids[:at]:
            for vcpu in self._board.queue[other]:
                if self._rank(vcpu) <= rank and pcpu in self._board.allowed(vcpu):
                    return vcpu
        return None


class AashSlots(CreditSlots):
    """Credit with fast cores shared out by weight, vCPU by vCPU."""

    def __init__(self, board: Board, seed: int) -> None:
        super().__init__(board, seed)
        self._fast: dict[VcpuKey, float] = {}

    def charge(self, vcpu: SimVcpu, pcpu: int) -> None:
        """A slot on a fast core costs one of those as well."""
        super().charge(vcpu, pcpu)
        if pcpu in self._board.fast:
            self._fast[key(vcpu)] = self._fast.get(key(vcpu), 0.0) - 1.0

    def allocate(self, slots: int) -> None:
        """Fast cores' slots by weight too."""
        super().allocate(slots)
        _hand_out(self._board, self._fast, slots, slots * len(self._board.fast))

    def select(self) -> None:
        """Fast cores fetch who is owed most of them; the others are Credit's."""
        board = self._board
        for pcpu in board.fast:
            current = board.running[pcpu]
            if current is not None and self._owed(current) and self._ran[key(current)] < 3:
                continue
            able = [
                v
                for v in board
                if self._owed(v)
                and pcpu in board.allowed(v)
                and (v is current or not (board.runs(v) and v.pcpu in board.fast))
            ]
            chosen = min(able, key=lambda v: (-round(self._fast[key(v)], 6), v.order), default=None)
            if chosen is not None:
                self._swap(chosen, pcpu)
        super().select()

    def _owed(self, vcpu: SimVcpu) -> bool:
        return self._fast.get(key(vcpu), 0.0) > 0.0 and self._rank(vcpu) != OVER

    def _swap(self, vcpu: SimVcpu, pcpu: int) -> None:
        board = self._board
        current, source = board.running[pcpu], vcpu.pcpu
        self._ran[key(vcpu)] = 0
        if current is vcpu or source is None:
            return
        board.run(vcpu, pcpu)
        if current is not None:
            board.wait(current, source if source in board.allowed(current) else pcpu)


def _hand_out(board: Board, credit: dict[VcpuKey, float], slots: int, total: float) -> None:
    """Credits of a cycle: by weight, what an instance cannot use to the others."""
    active: dict[str, list[SimVcpu]] = {}
    for vcpu in board:
        active.setdefault(key(vcpu)[0], []).append(vcpu)
    lacks = [float(slots * len(vcpus)) for vcpus in active.values()]
    weights = [vcpus[0].guest.guest.booking.weight for vcpus in active.values()]
    for vcpus, part in zip(active.values(), water_fill(total, lacks, weights), strict=True):
        for vcpu in vcpus:
            had = credit.get(key(vcpu), 0.0)
            credit[key(vcpu)] = max(-slots, min(slots, had + part / len(vcpus)))
