"""How fast the pCPUs of a simulated host are now: busy siblings and slow clocks.

Siblings of a core run whenever they have work, regardless of each other, so a thread meets a busy
sibling for the share of its time that this sibling is busy.
"""

from collections.abc import Iterable, Iterator, Mapping

from amp_nova.hardware.effective_speed import kept_ratio, slowing_siblings
from amp_nova.model.topology import CoreType, Topology
from amp_nova.sim.scenarios.hosts import Clocks
from amp_nova.sim.vcpu import Rate, Share


class PCpuSpeeds:
    """The speed of every pCPU, given what runs on all of them."""

    def __init__(self, topology: Topology, clocks: Clocks) -> None:
        """``clocks``: the phases of the clock of core types, by name."""
        types: tuple[CoreType, ...] = topology.core_types
        position = {t.name: at for at, t in enumerate(types)}
        self._type_of = {p.id: position[p.core_type] for p in topology.pcpus}
        self._factor = [t.smt_busy_factor for t in types]
        self._siblings = slowing_siblings(topology)
        self._clock = [1.0] * len(types)
        self._busy: dict[int, float] = {}
        self._clocks = {position[name]: phases for name, phases in clocks.items()}

    @property
    def vary(self) -> bool:
        """Whether speeds depend on anything but the core type."""
        return bool(self._siblings or self._clocks)

    def clock_changes(self) -> Iterator[tuple[float, Mapping[int, float]]]:
        """When clocks change, in order of time, and the ratios from then on by core type."""
        due = dict.fromkeys(self._clocks, (0.0, 0))
        while due:
            now_s = min(at_s for at_s, _ in due.values())
            changed = {}
            for at, (at_s, number) in due.items():
                if at_s <= now_s:
                    phase = self._clocks[at][number % len(self._clocks[at])]
                    changed[at] = phase.clock_ratio
                    due[at] = at_s + phase.for_s, number + 1
            yield now_s, changed

    def set_clocks(self, ratios: Mapping[int, float]) -> None:
        """Run core types, by position, at these ratios of their calibrated clock."""
        for at, ratio in ratios.items():
            self._clock[at] = ratio

    def meet(self, shares: Iterable[Share]) -> None:
        """Take note of what runs where from now on."""
        self._busy = {}
        for share in shares:
            for pcpu, cores in share.cores.items():
                self._busy[pcpu] = self._busy.get(pcpu, 0.0) + cores

    def rates(self, shares: Mapping[int, float]) -> tuple[Rate, ...]:
        """A vCPU's shares of pCPUs, by core type."""
        by_type: dict[int, list[float]] = {}
        for pcpu, cores in shares.items():
            at = self._type_of[pcpu]
            kept = 1.0
            if self.vary:
                kept = kept_ratio(self._factor[at], self._busy_beside(pcpu), self._clock[at])
            sums = by_type.setdefault(at, [0.0, 0.0])
            sums[0] += cores
            sums[1] += cores * kept
        return tuple(
            Rate(at, cores, kept / cores if cores > 0.0 else 1.0, self._clock[at])
            for at, (cores, kept) in by_type.items()
        )

    def _busy_beside(self, pcpu: int) -> float:
        idle = 1.0
        for sibling in self._siblings.get(pcpu, ()):
            idle *= 1.0 - min(1.0, self._busy.get(sibling, 0.0))
        return 1.0 - idle
