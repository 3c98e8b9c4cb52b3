"""Who runs on which core, and who waits in which core's queue: what slot schedulers move.

A vCPU always has a home, the core on which it runs, waits or slept last. Who waits at a barrier
stays here, since it waits busily: nothing tells a hypervisor that a guest's turn is for nothing.
"""

from collections.abc import Iterator

from amp_nova.hardware.relative_speed import gain
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import Topology
from amp_nova.sim.guest import SimVcpu


def key(vcpu: SimVcpu) -> VcpuKey:
    """Instance and index."""
    return vcpu.guest.guest.name, vcpu.index


class Board:
    """The cores of a host. ``speed``: scale factor, the coefficient over the slowest type's."""

    def __init__(self, topology: Topology) -> None:
        types = topology.core_types
        position = {t.name: at for at, t in enumerate(types)}
        self.topology = topology
        self.type_of = {p.id: position[p.core_type] for p in topology.pcpus}
        self.ids = sorted(self.type_of)
        self.fast = [p for p in self.ids if self.type_of[p] == len(types) - 1]
        self.speed = {p: gain(types, at) or 1.0 for p, at in self.type_of.items()}
        self.running: dict[int, SimVcpu | None] = dict.fromkeys(self.ids)
        self.queue: dict[int, list[SimVcpu]] = {p: [] for p in self.ids}
        self.stirred: dict[SimVcpu, None] = {}
        """Those that began or ceased to run since somebody asked."""
        self._llc = {p.id: p.llc for p in topology.pcpus}
        self._here: dict[SimVcpu, None] = {}
        self._allowed: dict[str, frozenset[int]] = {}

    def __contains__(self, vcpu: SimVcpu) -> bool:
        return vcpu in self._here

    def __iter__(self) -> Iterator[SimVcpu]:
        """All that run or want to, in the order of their start."""
        return iter(sorted(self._here, key=lambda v: v.order))

    def runs(self, vcpu: SimVcpu) -> bool:
        """Whether it has a core now."""
        return vcpu.pcpu is not None and self.running[vcpu.pcpu] is vcpu

    def allowed(self, vcpu: SimVcpu) -> frozenset[int]:
        """Where a vCPU may be: ``amp:core_type`` binds."""
        name = vcpu.guest.guest.name
        if name not in self._allowed:
            core_type = vcpu.guest.guest.booking.core_type
            ids = frozenset(self.ids)
            self._allowed[name] = self.topology.pcpus_of(core_type) if core_type else ids
        return self._allowed[name]

    def enter(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Put a vCPU that woke at the end of a core's queue."""
        self._here[vcpu] = None
        self._settle_on(vcpu, pcpu)
        self.queue[pcpu].append(vcpu)
        self.stirred[vcpu] = None

    def leave(self, vcpu: SimVcpu) -> None:
        """Take a vCPU off: it sleeps."""
        self._lift(vcpu)
        del self._here[vcpu]

    def run(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Give a vCPU a core, from wherever it was; whoever had the core is next in its queue."""
        had = self.running[pcpu]
        if had is vcpu:
            return
        self._lift(vcpu)
        if had is not None:
            self.queue[pcpu].insert(0, had)
            self.stirred[had] = None
        self._settle_on(vcpu, pcpu)
        self.running[pcpu] = vcpu
        self.stirred[vcpu] = None

    def wait(self, vcpu: SimVcpu, pcpu: int) -> None:
        """Put a vCPU at the end of a core's queue, from wherever it was."""
        self._lift(vcpu)
        self._settle_on(vcpu, pcpu)
        self.queue[pcpu].append(vcpu)

    def _lift(self, vcpu: SimVcpu) -> None:
        assert vcpu.pcpu is not None
        if self.running[vcpu.pcpu] is vcpu:
            self.running[vcpu.pcpu] = None
        else:
            self.queue[vcpu.pcpu].remove(vcpu)
        self.stirred[vcpu] = None

    def _settle_on(self, vcpu: SimVcpu, pcpu: int) -> None:
        if vcpu.pcpu is not None and vcpu.pcpu != pcpu:
            vcpu.migrations += 1
            vcpu.cross_llc_migrations += self._llc[vcpu.pcpu] != self._llc[pcpu]
        vcpu.pcpu = pcpu
