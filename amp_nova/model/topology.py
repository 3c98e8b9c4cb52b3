"""What a machine's processors are: core types, pCPUs and the reference core."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from amp_nova.exceptions import TopologyUnknown


@dataclass(frozen=True, slots=True)
class CoreType:
    """One kind of core.

    ``coefficient`` is its speed over the reference core (``coef(p)``, teabe2017 eq. 1), ``None``
    where nothing trustworthy gives one; ``nominal_ips`` the instructions per second it retires when
    it runs all the time, ``None`` when not measured.
    """

    name: str
    coefficient: float | None = None
    coefficient_source: str | None = None
    threads_per_core: int = 1
    nominal_ips: float | None = None
    clock_hz: float | None = None
    """Its nominal clock, ``None`` where the machine does not say."""
    smt_busy_factor: float | None = None
    """Speed of a thread with busy siblings over that with idle ones, as calibrated."""


@dataclass(frozen=True, slots=True)
class PCpu:
    """One logical CPU as the operating system numbers it, online."""

    id: int
    core_type: str
    siblings: tuple[int, ...] = ()
    """Online hardware threads of the same core, this one included."""
    numa_node: int | None = None
    llc: int | None = None
    """Lowest pCPU id that shares the last-level cache, which names the cache."""
    isolated: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """The core types of one machine, slowest first, and its online pCPUs by id."""

    core_types: tuple[CoreType, ...]
    pcpus: tuple[PCpu, ...]
    reference: str
    """Name of the reference core: a type of this machine, or of another one of the cloud."""
    source: str
    """Where the division into core types comes from."""
    offline: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    known: tuple[PCpu, ...] = ()
    """All pCPUs ever seen online, with all their siblings; empty: those that are online now."""
    _types: dict[str, CoreType] = field(init=False, repr=False, compare=False)
    _type_of: dict[int, CoreType] = field(init=False, repr=False, compare=False)
    _pcpus_of: dict[str, frozenset[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        types = {t.name: t for t in self.core_types}
        object.__setattr__(self, "_types", types)
        object.__setattr__(self, "_type_of", {p.id: types[p.core_type] for p in self.pcpus})
        of = {n: frozenset(p.id for p in self.pcpus if p.core_type == n) for n in types}
        object.__setattr__(self, "_pcpus_of", of)

    def core_type(self, name: str) -> CoreType:
        """The core type of that name; ``TopologyUnknown`` if there is none."""
        try:
            return self._types[name]
        except KeyError:
            known = ", ".join(self._types)
            raise TopologyUnknown(f"no core type '{name}' on this host; it has {known}") from None

    def type_of(self, pcpu: int) -> CoreType | None:
        """The core type of an online pCPU, ``None`` when it is not online."""
        return self._type_of.get(pcpu)

    def pcpus_of(self, core_type: str) -> frozenset[int]:
        """Ids of the online pCPUs of a core type."""
        return self._pcpus_of.get(core_type, frozenset())

    def with_online(self, online: frozenset[int]) -> "Topology | None":
        """The same machine with other CPUs online; ``None`` if one of them was never seen.

        Core types keep their coefficients, also when all their pCPUs are offline: what a core is
        worth does not depend on who else is there.
        """
        known = {p.id: p for p in self.known or self.pcpus}
        if not online or online - known.keys():
            return None
        awake = tuple(
            replace(p, siblings=tuple(s for s in p.siblings if s in online))
            for i, p in sorted(known.items())
            if i in online
        )
        offline = tuple(sorted({*self.offline, *known} - online))
        return replace(self, pcpus=awake, offline=offline, known=tuple(known.values()))

    def only_type(self, pcpus: Iterable[int]) -> CoreType | None:
        """The one core type all these pCPUs are of, ``None`` when they are of several or none."""
        found = {t.name for p in pcpus if (t := self.type_of(p)) is not None}
        return self._types[found.pop()] if len(found) == 1 else None
