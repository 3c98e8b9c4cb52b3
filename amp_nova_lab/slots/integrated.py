# SPDX-License-Identifier: Apache-2.0
"""The integrated algorithm of chen2014, slot by slot.

Idea. Scaled resources (SR) stand for work done, not for time: a slot on a core costs what that core
can do in it. Instances of equal weight therefore get equal work done, whatever cores they use.
Three queues per core, by the size of the instance, keep an instance on one core type as long as
that loads the cores evenly; parallel programs run on all their cores at once or not at all.

Formula. Each cycle of Z slots, ``SR_inc = Z * sum(SF(C)) * w / sum(w) / n`` for each of the n vCPUs
of an instance of weight w (equations 12 to 14); each slot on core C costs ``SF(C)``. On a fast core
queue 1 is for instances of at most N(FC) vCPUs, queue 2 for those of more than N(SC), queue 3 for
the others; on a slow core 1 and 3 are swapped. A core whose vCPU has no SR left takes one that has,
from its own queues 1, 2, 3, else from another core of its type 1, 2, 3, else from another type 3,
2, 1, but never of an instance that already has a vCPU there (algorithms 1 to 5).

Source. chen2014 sections 3.1 to 3.4. The initial mapping is that of ``policies.integrated``. Where
the paper leaves a choice open: cores choose in the order of their ids, and look at their own type
first; a core chooses again when a parallel instance has displaced its vCPU; a parallel instance
some of whose cores belong to another one in this slot waits for the next; a program with barriers
counts as parallel unless its flavor says otherwise, where the paper guesses. All types but the
fastest are SC.

Two rules come from its text instead of its pseudo-code. If no vCPU has SR left, the one that lacks
least runs: the queues are said to hold vCPUs with SR before those without. And a parallel instance
moves to another core type with all of its vCPUs, after all others, or not at all (principle 1).
Without the first rule, half of the fast cores' time is idle in the paper's own setting while vCPUs
wait; without the second, a fifth of it is spent waiting at barriers.

Cost. SR that an instance cannot use, because its vCPUs already run on slow cores all the time,
accumulates without bound, as published, and keeps the instance there or lets it alternate with
others in ever longer phases. A parallel instance on cores of both types gets more than its share,
because its vCPUs with SR left take the others along.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from amp_nova.hardware.effective_speed import gain
from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView, VcpuView
from amp_nova_lab.guest import SimVcpu
from amp_nova_lab.policies.integrated import IntegratedPolicy
from amp_nova_lab.scenarios.scenario import Guest
from amp_nova_lab.slots.board import Board

_NOISE = 1e-9
OWN, OTHER = (1, 2, 3), (3, 2, 1)


def view(board: Board, guests: Iterable[Guest]) -> HostView:
    """The guests of a scenario as a policy sees them before they are placed."""
    ids = frozenset(board.ids)
    types = board.topology.pcpus_of
    vcpus = tuple(
        VcpuView(
            (g.name, v.index),
            ids,
            types(g.booking.core_type) if g.booking.core_type else ids,
            g.booking.weight,
        )
        for g in guests
        for v in g.booking.vcpus
    )
    return HostView(board.topology, vcpus, dict.fromkeys(ids, 1.0))


def _parallel(guest: Guest) -> bool:
    """Whether a guest runs a parallel program, by its flavor or else by what it does."""
    stated = guest.booking.parallel
    return guest.workload.parallel if stated is None else stated


class IntegratedSlots:
    """Scaled resources, queues by size, and parallel instances that run all at once."""

    def __init__(self, board: Board, guests: Sequence[Guest], policy: IntegratedPolicy) -> None:
        self._board = board
        self._policy = policy
        self._view = view(board, guests)
        types = board.topology.core_types
        self._factor = {p: gain(types, at) or 1.0 for p, at in board.type_of.items()}
        """SF: the coefficient of each core over that of the slowest type."""
        self._size = {g.name: len(g.booking.vcpus) for g in guests}
        self._parallel = {g.name for g in guests if _parallel(g)}
        self.resources: dict[VcpuKey, float] = {v.key: 0.0 for v in self._view.vcpus}
        """The SR of each vCPU."""
        self._first = dict(policy.first_places(self._view)[1])
        """Where vCPUs that have not run since the last mapping are mapped to."""
        self._stale = False
        """Whether an instance has ended since the last mapping."""
        self._claimed: set[int] = set()
        """Cores of the parallel instances that run in this slot."""

    def wake(self, vcpu: SimVcpu) -> None:
        """Put a vCPU back on its home core, or at first on the core that it is mapped to."""
        home = self._first.pop(vcpu.key, vcpu.pcpu)
        assert home is not None
        self._board.enter(vcpu, home)

    def end(self, name: str) -> None:
        """Remove an instance: the others are mapped again and share its resources."""
        left = tuple(v for v in self._view.vcpus if v.key[0] != name)
        self._view = replace(self._view, vcpus=left)
        self._stale = True

    def debit(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Algorithm 3: a slot costs what the core can do in it."""
        self.resources[vcpu.key] -= self._factor[pcpu]

    def allocate(self, slots: int) -> None:
        """Algorithm 2: by weight to instances, evenly to their vCPUs."""
        total = slots * sum(self._factor.values())
        weights = {v.key[0]: v.weight for v in self._view.vcpus}
        whole = sum(weights.values())
        for vcpu in self._view.vcpus:
            name = vcpu.key[0]
            self.resources[vcpu.key] += total * weights[name] / whole / self._size[name]

    def select(self) -> None:
        """Algorithm 4 for every core."""
        if self._stale:
            self._map_again()
        self._claimed = set()
        running = self._board.running
        for pcpu in self._board.ids:
            if pcpu in self._claimed:
                continue
            current = running[pcpu]
            if current and not (self._has_sr(current, pcpu) and self._fits(current)):
                self._board.wait(current, pcpu)
            chosen = running[pcpu] or self._find(pcpu)
            if chosen is not None:
                self._execute(chosen, pcpu)
        for pcpu in self._board.ids:
            if running[pcpu] is None and (chosen := self._find_without_sr(pcpu)) is not None:
                self._execute(chosen, pcpu)
        self.fill()

    def fill(self) -> None:
        """Find work for idle cores; parallel instances do not start within a slot."""
        for pcpu in self._board.ids:
            if self._board.running[pcpu] is None:
                chosen = self._find(pcpu, alone=True) or self._find_without_sr(pcpu, alone=True)
                if chosen is not None:
                    self._board.run(chosen, pcpu)

    def _map_again(self) -> None:
        """Algorithm 1 for the instances that are left."""
        self._stale = False
        self._first = dict(self._policy.first_places(self._view)[1])
        for vcpu in self._board:
            home = self._first.pop(vcpu.key)
            if vcpu.pcpu != home:
                self._board.wait(vcpu, home)

    def _queue(self, vcpu: SimVcpu, pcpu: int) -> int:
        """Which of a core's three queues a vCPU belongs to."""
        board = self._board
        size, fast = self._size[vcpu.key[0]], len(board.fast)
        if size > len(board.ids) - fast:
            return 2
        return 1 if (size <= fast) == (pcpu in board.fast) else 3

    def _find(self, pcpu: int, *, alone: bool = False) -> SimVcpu | None:
        """The vCPU with SR that a core runs next: from its own queues, else from other cores."""
        types, ids = self._board.type_of, self._board.ids
        # Stable, so by id within: the core itself, its type, the other types.
        for source in sorted(ids, key=lambda p: (p != pcpu, types[p] != types[pcpu])):
            order = OWN if types[source] == types[pcpu] else OTHER
            able = self._stealable(source, pcpu)
            fitting = [v for v in able if not self._splits(v, pcpu) and self._fits(v, alone=alone)]
            if (vcpu := self._first_by_queue(fitting, source, order)) is not None:
                return vcpu
        for source in ids if not alone else ():
            if source == pcpu:
                continue
            able = self._stealable(source, pcpu)
            whole = [v for v in able if self._free_cores(v, pcpu) is not None]
            if (vcpu := self._first_by_queue(whole, source, OTHER)) is not None:
                self._bring(vcpu, pcpu)
                return vcpu
        return None

    def _stealable(self, source: int, target: int) -> Iterator[SimVcpu]:
        """vCPUs with SR in a core's queue that ``target`` may run."""
        for vcpu in self._board.queue[source]:
            if self._has_sr(vcpu, target) and (source == target or not _beside(vcpu, target)):
                yield vcpu

    def _first_by_queue(
        self, vcpus: Iterable[SimVcpu], pcpu: int, order: Sequence[int]
    ) -> SimVcpu | None:
        return min(vcpus, key=lambda v: order.index(self._queue(v, pcpu)), default=None)

    def _find_without_sr(self, pcpu: int, *, alone: bool = False) -> SimVcpu | None:
        """The vCPU that lacks least SR: from the core's own queues, else from other cores."""
        own = self._board.queue[pcpu]
        others = (v for p in self._board.ids for v in self._board.queue[p] if not _beside(v, pcpu))
        for queue in (own, others):
            able = [
                v
                for v in queue
                if pcpu in self._board.allowed(v)
                and not self._splits(v, pcpu)
                and self._fits(v, alone=alone, gently=True)
            ]
            if able:
                return max(able, key=lambda v: (round(self.resources[v.key], 6), -v.order))
        return None

    def _splits(self, vcpu: SimVcpu, pcpu: int) -> bool:
        """Whether running here would take a parallel instance's vCPU off its core type alone."""
        types = self._board.type_of
        homes = [v.pcpu for v in vcpu.guest.vcpus if v.pcpu is not None]
        return vcpu.key[0] in self._parallel and all(types[p] != types[pcpu] for p in homes)

    def _free_cores(self, vcpu: SimVcpu, pcpu: int) -> list[int] | None:
        """The least crowded cores of a core's type for the instance's other vCPUs, if enough."""
        board = self._board
        free = [
            p
            for p in board.ids
            if p != pcpu
            and board.type_of[p] == board.type_of[pcpu]
            and p not in self._claimed
            and p in board.allowed(vcpu)
        ]
        free.sort(key=board.load)
        others = self._size[vcpu.key[0]] - 1
        return free[:others] if len(free) >= others else None

    def _bring(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Principle 1: all of a parallel instance moves to another core type, or none of it."""
        others = (v for v in vcpu.guest.vcpus if v is not vcpu)
        for other, target in zip(others, self._free_cores(vcpu, pcpu) or (), strict=True):
            if other in self._board:
                self._board.wait(other, target)
            else:
                self._first[other.key] = target

    def _has_sr(self, vcpu: SimVcpu, pcpu: int) -> bool:
        """Whether it has SR left and may use the core."""
        return self.resources[vcpu.key] > _NOISE and pcpu in self._board.allowed(vcpu)

    def _fits(self, vcpu: SimVcpu, *, alone: bool = False, gently: bool = False) -> bool:
        """Whether a parallel instance can have all its cores now.

        ``alone``: without starting any other of its vCPUs; ``gently``: without displacing a vCPU
        that has SR.
        """
        if vcpu.key[0] not in self._parallel:
            return True
        others = [v for v in self._together(vcpu) if v is not vcpu]
        if alone:
            return not others or any(self._board.runs(v) for v in others)
        for other in others:
            assert other.pcpu is not None
            current = self._board.running[other.pcpu]
            if other.pcpu in self._claimed:
                return False
            if gently and current is not None and self.resources[current.key] > _NOISE:
                return False
        return True

    def _together(self, vcpu: SimVcpu) -> Iterator[SimVcpu]:
        return (v for v in vcpu.guest.vcpus if v in self._board)

    def _execute(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Algorithm 5: a parallel program runs on all its cores at once."""
        self._board.run(vcpu, pcpu)
        if vcpu.key[0] not in self._parallel:
            return
        self._claimed.add(pcpu)
        for other in self._together(vcpu):
            # An instance with more vCPUs than cores has two on one core: only one of them runs.
            if other.pcpu is not None and other.pcpu not in self._claimed:
                self._board.run(other, other.pcpu)
                self._claimed.add(other.pcpu)


def _beside(vcpu: SimVcpu, pcpu: int) -> bool:
    """Whether a core is home to another unfinished vCPU of the same instance."""
    return any(v.pcpu == pcpu and not v.work.done for v in vcpu.guest.vcpus if v is not vcpu)
