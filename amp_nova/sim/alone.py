"""How fast a guest would be without other guests."""

from collections.abc import Sequence

from amp_nova.hardware.relative_speed import alone_shares
from amp_nova.model.topology import PCpu, Topology
from amp_nova.sim.counters import Counting, Hardware
from amp_nova.sim.guest import SimGuest, alone_pcpus
from amp_nova.sim.scenarios.hosts import NO_CLOCKS
from amp_nova.sim.speeds import PCpuSpeeds
from amp_nova.sim.timeline import Timeline
from amp_nova.sim.vcpu import Share, SimVcpu


def alone_speeds(
    guest: SimGuest, topology: Topology, seed: int, now_s: float
) -> tuple[float, float]:
    """Mean speed per vCPU on cores of the slowest type only, and alone on the host.

    Both without SMT and at calibrated clocks. A guest whose vCPUs differ is simulated again.
    """
    if guest.alone:
        for behaviour in guest.behaviours:
            behaviour.accrue(now_s)
        slowest, alone = (a.speed for a in guest.alone)
        return slowest, alone
    slowest, alone = (
        _simulated(guest, topology, pcpus, seed, now_s - guest.started_s)
        for pcpus in alone_pcpus(guest.guest, topology)
    )
    return slowest, alone


def _simulated(
    guest: SimGuest, topology: Topology, pcpus: Sequence[int], seed: int, lasts_s: float
) -> float:
    types = topology.core_types
    one_each = tuple(PCpu(at, t.name, (at,), llc=0) for at, t in enumerate(types))
    small = Topology(types, one_each, topology.reference, topology.source)
    timeline = Timeline(TakingTurns(pcpus), PCpuSpeeds(small, NO_CLOCKS))
    again = SimGuest(guest.guest, 0.0, seed, Hardware(topology), Counting(works=False))
    again.start(1, frozenset(range(len(types))))
    timeline.start(again)
    timeline.advance(lasts_s)
    for vcpu in again.vcpus:
        vcpu.accrue(lasts_s)
    return again.speed(lasts_s)


class TakingTurns:
    """The vCPUs of one guest take the fastest pCPUs, and take turns if these are too few."""

    def __init__(self, pcpus: Sequence[int]) -> None:
        """``pcpus``: how many of each core type, slowest first."""
        self._pcpus = pcpus
        self._running: dict[SimVcpu, None] = {}

    def wake(self, vcpu: SimVcpu) -> None:
        """A vCPU became runnable."""
        self._running[vcpu] = None

    def sleep(self, vcpu: SimVcpu) -> None:
        """A vCPU is no longer runnable."""
        del self._running[vcpu]

    def changed(self, vcpu: SimVcpu) -> None:
        """Never called: no agent changes affinities or limits here."""
        raise AssertionError(vcpu)

    def reschedule(self) -> dict[SimVcpu, Share]:
        """The same share for every vCPU; one pCPU stands for all of its core type."""
        if not self._running:
            return {}
        given = alone_shares(self._pcpus, len(self._running))
        cores = {at: share for at, share in enumerate(given) if share > 0.0}
        return {vcpu: Share(cores, 0.0) for vcpu in self._running}
