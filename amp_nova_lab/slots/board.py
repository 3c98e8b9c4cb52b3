# SPDX-License-Identifier: Apache-2.0
"""Which vCPU runs on which core, and which wait in its queue: the state of a slot scheduler.

A vCPU always has a home: the core on which it runs, waits or last slept. A vCPU that waits at a
barrier stays on the board because it waits busily: a hypervisor cannot tell that its slots are
wasted.
"""

from collections.abc import Iterator

from amp_nova.model.topology import Topology
from amp_nova_lab.cores import place
from amp_nova_lab.guest import SimVcpu


class Board:
    """The cores of a host."""

    def __init__(self, topology: Topology) -> None:
        position = {t.name: at for at, t in enumerate(topology.core_types)}
        self.topology = topology
        self.type_of = {p.id: position[p.core_type] for p in topology.pcpus}
        """Each core's type, by position, slowest first."""
        self.ids = sorted(self.type_of)
        self.fast = [p for p in self.ids if self.type_of[p] == len(position) - 1]
        self.running: dict[int, SimVcpu | None] = dict.fromkeys(self.ids)
        self.queue: dict[int, list[SimVcpu]] = {p: [] for p in self.ids}
        self.changed: dict[SimVcpu, None] = {}
        """vCPUs that started or stopped running since this was last cleared."""
        self._llc = {p.id: p.llc for p in topology.pcpus}
        self._here: dict[SimVcpu, None] = {}
        self._everywhere = frozenset(self.ids)

    def __contains__(self, vcpu: SimVcpu) -> bool:
        return vcpu in self._here

    def __iter__(self) -> Iterator[SimVcpu]:
        """All vCPUs that run or want to, in the order in which they were started."""
        return iter(sorted(self._here, key=lambda v: v.order))

    def runs(self, vcpu: SimVcpu) -> bool:
        """Whether it has a core now."""
        return vcpu.pcpu is not None and self.running[vcpu.pcpu] is vcpu

    def load(self, pcpu: int) -> int:
        """How many vCPUs run and wait on a core."""
        return len(self.queue[pcpu]) + (self.running[pcpu] is not None)

    def allowed(self, vcpu: SimVcpu) -> frozenset[int]:
        """The cores a vCPU may use; ``amp:core_type`` binds."""
        core_type = vcpu.guest.guest.booking.core_type
        return self.topology.pcpus_of(core_type) if core_type else self._everywhere

    def enter(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Put a vCPU that woke at the end of a core's queue."""
        self._here[vcpu] = None
        place(vcpu, pcpu, self._llc)
        self.queue[pcpu].append(vcpu)
        self.changed[vcpu] = None

    def leave(self, vcpu: SimVcpu) -> None:
        """Take a vCPU that goes to sleep off the board."""
        self._lift(vcpu)
        del self._here[vcpu]

    def run(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Run a vCPU on a core; the one that ran there goes to the front of its queue."""
        previous = self.running[pcpu]
        if previous is vcpu:
            return
        self._lift(vcpu)
        if previous is not None:
            self.queue[pcpu].insert(0, previous)
            self.changed[previous] = None
        place(vcpu, pcpu, self._llc)
        self.running[pcpu] = vcpu
        self.changed[vcpu] = None

    def wait(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Move a vCPU to the end of a core's queue."""
        self._lift(vcpu)
        place(vcpu, pcpu, self._llc)
        self.queue[pcpu].append(vcpu)

    def _lift(self, vcpu: SimVcpu) -> None:
        assert vcpu.pcpu is not None
        if self.running[vcpu.pcpu] is vcpu:
            self.running[vcpu.pcpu] = None
        else:
            self.queue[vcpu.pcpu].remove(vcpu)
        self.changed[vcpu] = None
