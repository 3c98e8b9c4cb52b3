"""The integrated algorithm of chen2014, slot by slot.

Idea. Scaled resources (SR) stand for work done, not for time: a slot on a core costs what the core
can do in it. So instances of equal weight get the same work done, on whatever cores. Three queues
per core, by the size of instances, keep an instance on one core type while that loads cores evenly;
parallel programs run on all their cores at once or not at all.

Formula. Each cycle of Z slots, ``SR_inc = Z * sum(SF(C)) * w / sum(w) / n`` for each of the n vCPUs
of an instance of weight w (equations 12 to 14); each slot on core C costs ``SF(C)``. On a fast core
queue 1 is for instances of at most N(FC) vCPUs, 2 for those of more than N(SC), 3 for the others;
on a slow core 1 and 3 change places. A core whose vCPU has no SR left takes one that has, from its
own queues 1, 2, 3, else from a core of its type 1, 2, 3, else from another type 3, 2, 1, but never
of an instance that already has a vCPU there (algorithms 1 to 5).

Source. chen2014 sections 3.1 to 3.4. The initial mapping is ``policies.integrated``'s. What the
paper leaves open is decided thus: cores are asked in the order of their ids, and own types first;
cores are asked again when an instance that runs at once has taken somebody's core; an instance some
of whose cores another one holds in this slot waits for the next; whether a program is parallel is
known from its barriers, where the paper guesses. All types but the fastest are SC.

Two things are not in its pseudo-code, but in its text. Where nobody has SR left, who lacks least
runs all the same: the queues are said to hold those with SR before those without. And a parallel
instance goes to another core type with all of its vCPUs, after everybody else, or not at all
(principle 1). Without the first, half of the fast cores' time was idle in the paper's own setting,
with vCPUs waiting; without the second, a fifth of it was spent on waiting at barriers.

What it costs: SR that an instance cannot use, since its vCPUs always run on slow cores already, is
saved up without bound, as published, and keeps them there, or lets them alternate with others in
ever longer phases; and an instance that runs at once on cores
of both types takes more than its part, because those with SR left take the others along.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.integrated import IntegratedPolicy
from amp_nova.sim.guest import SimVcpu
from amp_nova.sim.scenarios.scenario import Guest
from amp_nova.sim.slots.board import Board, key

_NOISE = 1e-9
OWN, OTHER = (1, 2, 3), (3, 2, 1)


def view(board: Board, guests: Iterable[Guest]) -> HostView:
    """The guests of a scenario as a policy sees them that is about to place them."""
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


class IntegratedSlots:
    """Scaled resources, queues by size, and parallel instances all at once."""

    def __init__(self, board: Board, guests: Sequence[Guest], policy: IntegratedPolicy) -> None:
        self._board = board
        self._policy = policy
        self._view = view(board, guests)
        self._size = {g.name: len(g.booking.vcpus) for g in guests}
        self._parallel = {g.name for g in guests if g.workload.barrier_ref_s is not None}
        self._sr: dict[VcpuKey, float] = {v.key: 0.0 for v in self._view.vcpus}
        self._first = dict(policy.first_places(self._view)[1])
        """Where those are mapped to that have not run since."""
        self._remap = False
        self._held: set[int] = set()
        """Cores of instances that run at once in this slot."""

    def wake(self, vcpu: SimVcpu) -> None:
        """Back to its home; at first where it was mapped."""
        home = self._first.pop(key(vcpu), vcpu.pcpu)
        assert home is not None
        self._board.enter(vcpu, home)

    def end(self, name: str) -> None:
        """An instance is gone: the others are mapped anew, and share its resources."""
        left = tuple(v for v in self._view.vcpus if v.key[0] != name)
        self._view = replace(self._view, vcpus=left)
        self._remap = True

    def resources(self) -> dict[VcpuKey, float]:
        """What each vCPU has."""
        return dict(self._sr)

    def charge(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Algorithm 3: a slot costs what the core can do in it."""
        self._sr[key(vcpu)] -= self._board.speed[pcpu]

    def allocate(self, slots: int) -> None:
        """Algorithm 2: by weight to instances, evenly to their vCPUs."""
        total = slots * sum(self._board.speed.values())
        weights = {v.key[0]: v.weight for v in self._view.vcpus}
        whole = sum(weights.values())
        for vcpu in self._view.vcpus:
            name = vcpu.key[0]
            self._sr[vcpu.key] += total * weights[name] / whole / self._size[name]

    def select(self) -> None:
        """Algorithm 4 for every core."""
        if self._remap:
            self._settle()
        self._held = set()
        running = self._board.running
        for pcpu in self._board.ids:
            if pcpu in self._held:
                continue
            current = running[pcpu]
            if current and not (self._has(current, pcpu) and self._fits(current)):
                self._board.wait(current, pcpu)
            chosen = running[pcpu] or self._find(pcpu)
            if chosen is not None:
                self._execute(chosen, pcpu)
        for pcpu in self._board.ids:
            if running[pcpu] is None and (chosen := self._rest(pcpu)) is not None:
                self._execute(chosen, pcpu)
        self.fill()

    def fill(self) -> None:
        """Work for cores that idle; instances that run at once do not begin within a slot."""
        for pcpu in self._board.ids:
            if self._board.running[pcpu] is None:
                chosen = self._find(pcpu, alone=True) or self._rest(pcpu, alone=True)
                if chosen is not None:
                    self._board.run(chosen, pcpu)

    def _rest(self, pcpu: int, *, alone: bool = False) -> SimVcpu | None:
        """Who runs where nobody has resources: who lacks least, of its own queues if there is one.

        The queues are kept "with SR > 0 before SR < 0": so the others are in them too.
        """
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
                return max(able, key=lambda v: (round(self._sr[key(v)], 6), -v.order))
        return None

    def _settle(self) -> None:
        """Algorithm 1 again, for those that are left."""
        self._remap = False
        self._first = dict(self._policy.first_places(self._view)[1])
        for vcpu in self._board:
            home = self._first.pop(key(vcpu))
            if vcpu.pcpu != home:
                self._board.wait(vcpu, home)

    def _queue(self, vcpu: SimVcpu, pcpu: int) -> int:
        """Which of a core's three queues a vCPU belongs into."""
        board = self._board
        size, fast = self._size[key(vcpu)[0]], len(board.fast)
        if size > len(board.ids) - fast:
            return 2
        return 1 if (size <= fast) == (pcpu in board.fast) else 3

    def _find(self, pcpu: int, *, alone: bool = False) -> SimVcpu | None:
        """Who runs next on a core that has nobody with resources: its own first, then a steal."""
        found = self._next(pcpu, OWN, pcpu, alone=alone)
        if found is not None:
            return found
        kinds, others = self._board.type_of, [p for p in self._board.ids if p != pcpu]
        for source in sorted(others, key=lambda p: kinds[p] != kinds[pcpu]):
            order = OWN if kinds[source] == kinds[pcpu] else OTHER
            found = self._next(source, order, pcpu, alone=alone)
            if found is not None:
                return found
        for source in others if not alone else ():
            found = self._next(source, OTHER, pcpu, whole=True)
            if found is not None:
                self._bring(found, pcpu)
                return found
        return None

    def _next(
        self,
        source: int,
        order: Sequence[int],
        target: int,
        *,
        alone: bool = False,
        whole: bool = False,
    ) -> SimVcpu | None:
        """The first with resources in a core's queues; ``whole``: with all of its instance."""
        able = [
            v
            for v in self._board.queue[source]
            if self._has(v, target)
            and not (source != target and _beside(v, target))
            and (
                self._rooms(v, target) is not None
                if whole
                else self._fits(v, alone=alone) and not self._splits(v, target)
            )
        ]
        return min(able, key=lambda v: order.index(self._queue(v, source)), default=None)

    def _splits(self, vcpu: SimVcpu, pcpu: int) -> bool:
        """Whether a parallel instance would leave its core type with one of its vCPUs."""
        kinds = self._board.type_of
        homes = [v.pcpu for v in vcpu.guest.vcpus if v.pcpu is not None]
        return key(vcpu)[0] in self._parallel and all(kinds[p] != kinds[pcpu] for p in homes)

    def _rooms(self, vcpu: SimVcpu, pcpu: int) -> list[int] | None:
        """Cores of a core's type for the others of an instance, or ``None``: the least crowded."""
        board = self._board
        rooms = [
            p
            for p in board.ids
            if p != pcpu
            and board.type_of[p] == board.type_of[pcpu]
            and p not in self._held
            and p in board.allowed(vcpu)
        ]
        rooms.sort(key=lambda p: len(board.queue[p]) + (board.running[p] is not None))
        others = self._size[key(vcpu)[0]] - 1
        return rooms[:others] if len(rooms) >= others else None

    def _bring(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Principle 1: all of a parallel instance move to another core type, or none."""
        others = (v for v in vcpu.guest.vcpus if v is not vcpu)
        for other, room in zip(others, self._rooms(vcpu, pcpu) or (), strict=True):
            if other in self._board:
                self._board.wait(other, room)
            else:
                self._first[key(other)] = room

    def _has(self, vcpu: SimVcpu, pcpu: int) -> bool:
        """Whether it has resources, and may use a core."""
        return self._sr[key(vcpu)] > _NOISE and pcpu in self._board.allowed(vcpu)

    def _fits(self, vcpu: SimVcpu, *, alone: bool = False, gently: bool = False) -> bool:
        """Whether an instance that runs at once has its cores; ``gently``: from nobody with SR."""
        if key(vcpu)[0] not in self._parallel:
            return True
        others = [v for v in self._together(vcpu) if v is not vcpu]
        if alone:
            return not others or any(self._board.runs(v) for v in others)
        for other in others:
            assert other.pcpu is not None
            current = self._board.running[other.pcpu]
            if other.pcpu in self._held:
                return False
            if gently and current is not None and self._sr[key(current)] > _NOISE:
                return False
        return True

    def _together(self, vcpu: SimVcpu) -> Iterator[SimVcpu]:
        return (v for v in vcpu.guest.vcpus if v in self._board)

    def _execute(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Algorithm 5: a parallel program on all its cores at once."""
        self._board.run(vcpu, pcpu)
        if key(vcpu)[0] not in self._parallel:
            return
        self._held.add(pcpu)
        for other in self._together(vcpu):
            # Two of an instance with more vCPUs than cores cannot run at once.
            if other.pcpu is not None and other.pcpu not in self._held:
                self._board.run(other, other.pcpu)
                self._held.add(other.pcpu)


def _beside(vcpu: SimVcpu, pcpu: int) -> bool:
    """Whether a core is home to another vCPU of the same instance, awake or asleep."""
    return any(v.pcpu == pcpu and not v.done for v in vcpu.guest.vcpus if v is not vcpu)
