# SPDX-License-Identifier: Apache-2.0
"""The CPUs of a machine: core types, pCPUs and the reference core."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from amp_nova.exceptions import TopologyUnknown


@dataclass(frozen=True, slots=True)
class CoreType:
    """Cores of one design and speed class. ``None`` means unknown."""

    name: str
    coefficient: float | None = None
    """Speed relative to the reference core: ``coef(p)`` in teabe2017, equation 1."""
    coefficient_source: str | None = None
    threads_per_core: int = 1
    nominal_ips: float | None = None
    """Instructions per second that a core of this type retires when it is always busy."""
    clock_hz: float | None = None
    """The base frequency or, if ``clock_calibrated``, the clock during calibration."""
    smt_busy_factor: float | None = None
    """Speed of a thread whose siblings are busy, relative to its speed when they are idle. In a
    topology for admission, 0 means that only one thread of a core may be booked."""
    clock_calibrated: bool = False
    miss_cycles: float | None = None
    """Cycles that a last-level cache miss costs, as calibrated."""


@dataclass(frozen=True, slots=True)
class PCpu:
    """One online logical CPU, numbered as in Linux."""

    id: int
    core_type: str
    siblings: tuple[int, ...] = ()
    """Online hardware threads of the same core, including this one."""
    llc: int | None = None
    """The last-level cache, identified by the lowest pCPU id that shares it."""
    isolated: bool = False


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Topology:
    """The core types of one machine, slowest first, and its online pCPUs in order of id."""

    core_types: tuple[CoreType, ...]
    pcpus: tuple[PCpu, ...]
    reference: str
    """Core type of the reference core, on this machine or on another machine of the cloud."""
    source: str
    """What the division into core types is based on."""
    offline: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    known: tuple[PCpu, ...] = ()
    """Every pCPU seen online so far, with all siblings; empty means ``pcpus``."""
    one_type: bool = False
    """Whether all vCPUs of a guest have to stay on one core type. On Arm, KVM cannot give a vCPU
    the registers of another design, so a guest on two may fail to start or to be reset."""
    incomplete: bool = False
    """Whether a source says nothing of some pCPUs, perhaps because they have just come online."""
    _by_id: dict[int, tuple[CoreType, PCpu]] = field(init=False, repr=False, compare=False)
    _pcpus_of: dict[str, frozenset[int]] = field(init=False, repr=False, compare=False)
    _positions: dict[frozenset[int], int] = field(init=False, repr=False, compare=False)
    """The results of ``position`` for all pCPUs of a core type, a usual affinity."""

    def __post_init__(self) -> None:
        types = {t.name: (t, set[int]()) for t in self.core_types}
        by_id = {}
        for pcpu in self.pcpus:
            core_type, ids = types[pcpu.core_type]
            ids.add(pcpu.id)
            by_id[pcpu.id] = core_type, pcpu
        object.__setattr__(self, "_by_id", by_id)
        of = {name: frozenset(ids) for name, (_, ids) in types.items()}
        object.__setattr__(self, "_pcpus_of", of)
        positions = {ids: at for at, ids in enumerate(of.values()) if ids}
        object.__setattr__(self, "_positions", positions)

    def __hash__(self) -> int:
        # Cheap, because topologies are keys of caches; few that differ are ever compared.
        return hash((self.reference, self.source, len(self.pcpus)))

    def core_type(self, name: str) -> CoreType:
        """The core type with that name; raises ``TopologyUnknown`` if there is none."""
        for core_type in self.core_types:
            if core_type.name == name:
                return core_type
        names = ", ".join(t.name for t in self.core_types)
        raise TopologyUnknown(f"no core type '{name}' on this host; it has {names}")

    def type_of(self, pcpu: int) -> CoreType | None:
        """The core type of a pCPU; ``None`` if the pCPU is offline."""
        entry = self._by_id.get(pcpu)
        return None if entry is None else entry[0]

    @property
    def asymmetric(self) -> bool:
        """Whether pCPUs of several core types are online."""
        return sum(map(bool, self._pcpus_of.values())) > 1

    @property
    def speeds_vary(self) -> bool:
        """Whether a core type is calibrated for what busy siblings or low clocks cost."""
        return any(t.smt_busy_factor is not None or t.clock_calibrated for t in self.core_types)

    def siblings_of(self, pcpu: int) -> tuple[int, ...]:
        """The other online hardware threads of a pCPU's core; empty if the pCPU is offline."""
        entry = self._by_id.get(pcpu)
        return () if entry is None else tuple(s for s in entry[1].siblings if s != pcpu)

    def pcpus_of(self, core_type: str) -> frozenset[int]:
        """Ids of the online pCPUs of a core type."""
        return self._pcpus_of.get(core_type, frozenset())

    def with_online(self, online: frozenset[int]) -> "Topology | None":
        """The same machine with these CPUs online.

        ``None`` if the set is empty or contains a CPU that was never seen online. Core types keep
        their coefficients even if all their pCPUs are offline: the speed of a core does not depend
        on which others are online.
        """
        by_id = {p.id: p for p in self.known or self.pcpus}
        if not online or online - by_id.keys():
            return None
        pcpus = tuple(
            replace(p, siblings=tuple(s for s in p.siblings if s in online))
            for i, p in sorted(by_id.items())
            if i in online
        )
        offline = tuple(sorted({*self.offline, *by_id} - online))
        return replace(self, pcpus=pcpus, offline=offline, known=tuple(by_id.values()))

    def only_type(self, pcpus: Iterable[int]) -> CoreType | None:
        """The core type of all these pCPUs; ``None`` if they have several or none."""
        position = self.position(pcpus)
        return None if position is None else self.core_types[position]

    def position(self, pcpus: Iterable[int]) -> int | None:
        """The index of that core type in ``core_types``; ``None`` as for ``only_type``."""
        all_of, pcpus = self._pcpus_of, frozenset(pcpus)
        if len(pcpus) == 1 and (only := self._by_id.get(next(iter(pcpus)))) is not None:
            pcpus = all_of[only[1].core_type]
        if (usual := self._positions.get(pcpus)) is not None:
            return usual
        present = [i for i, t in enumerate(self.core_types) if not pcpus.isdisjoint(all_of[t.name])]
        return present[0] if len(present) == 1 else None
