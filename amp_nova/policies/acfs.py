"""``acfs``: everybody is slowed down by the same factor.

Idea. Against running alone on a big core, whoever runs on a small one loses what his speedup says.
So equal shares of the big cores are not fair: the higher the speedup, the more of them it takes to
be slowed down as little as the others. Each vCPU has a clock of its progress, in seconds that a big
core would have needed; whoever is behind gets a big core. That is the most throughput there is at
the least unfairness.

Formula. A second of running advances the clock by ``W_def / (S_core x W_t)``: ``S_core`` is 1 on a
big core and the vCPU's speedup on a small one (saez2015 eq. 3; on core types in between, what the
work takes there over the fastest). With ``unfairness_factor`` UF above 1 it is divided further by
``1 + (UF - 1)(S - S_min) / (S_max - S_min)`` (eq. 5): high speedups get more of the big cores,
throughput rises, and unfairness stays below UF times the optimum. Two vCPUs change places when the
one on the big core is ahead by ``T_swap (1 - 1 / SF_avg)`` (eq. 4, in seconds); a newcomer starts
at the greatest clock. Oracle: slowdown S for all, f_i = (1/S - 1/s_i) / (1 - 1/s_i) clipped to
0..1, with sum f_i = NB.

Source. saez2015 section 3. Weights are ``amp:weight``. Unlike the paper, what a vCPU ran before its
speedup was known is entered when it is; until then it counts with its instance's mean, then the
host's, then the hardware's. The paper uses an application-wide speedup for multithreaded programs,
which gain less the more of their threads have no big core: ``application_wide``. It is off since
slowdown here is against as many fast cores as vCPUs, by which each vCPU's own speedup is the right
one.

Cost. Decisions are seconds apart, so ``swap_s`` below the interval moves vCPUs at most every
interval; ``N log N``.

When not to use it: for throughput (``hsp``, ``amp-vm``), or where nothing counts instructions:
without speedups all slow down as the hardware says, which makes it ``a-dwrr``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from amp_nova.hardware.relative_speed import gain, speed
from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import Decision, HostView, VcpuView
from amp_nova.policies.parameters import at_least
from amp_nova.policies.placing import deficit, virtual_time
from amp_nova.policies.placing.core_shares import is_active
from amp_nova.policies.placing.deficit import Tallies
from amp_nova.policies.placing.score import measured

UNFAIRNESS_KEPT = 0.97
"""Part of the allowed unfairness that is aimed at: turns last seconds, and leave a remainder."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Clocks, and CPU seconds by core type of those whose speedup was not known yet."""

    clock_s: Mapping[VcpuKey, float] = field(default_factory=dict)
    pending_s: Mapping[VcpuKey, Sequence[float]] = field(default_factory=dict)
    tallies: Tallies = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AcfsPolicy:
    """The same slowdown for everybody."""

    unfairness_factor: float = 1.0
    """How much unfairness to allow for throughput, over the least there can be."""
    swap_s: float = 0.85
    """Mean time between two swaps that the threshold aims at (T_swap)."""
    application_wide: bool = False
    """Count with the speedup of the whole instance, as far as it has big cores."""
    name: str = "acfs"

    def __post_init__(self) -> None:
        at_least("unfairness_factor", self.unfairness_factor, 1.0)
        at_least("swap_s", self.swap_s, 0.0)

    def decide(self, view: HostView) -> Decision:
        """Whoever is furthest behind has a big core next."""
        memory = view.memory if isinstance(view.memory, Memory) else Memory()
        so_far = deficit.tallies(view, dict(memory.tallies))
        known = {v.key: self._speedup(view, so_far, v) for v in view.vcpus}
        usual = _Usual(view, known)
        slower = {v.key: self._slowness(view, v, usual) for v in view.vcpus}
        steps: dict[VcpuKey, float | None] = {}
        pending: dict[VcpuKey, Sequence[float]] = {}
        for vcpu in view.vcpus:
            ran_s = virtual_time.wanted_all(view, vcpu)
            waits = memory.pending_s.get(vcpu.key)
            if ran_s is not None and waits is not None:
                ran_s = [a + b for a, b in zip(ran_s, waits, strict=True)]
            if ran_s is not None and known[vcpu.key] is None:
                pending[vcpu.key] = ran_s
                steps[vcpu.key] = 0.0
            else:
                steps[vcpu.key] = _progress_s(ran_s, slower[vcpu.key])
        clock_s = virtual_time.advance(view, memory.clock_s, steps)
        claim = {
            key: -at_s - (_progress_s(pending.get(key), slower[key]) or 0.0)
            for key, at_s in clock_s.items()
        }
        places, so_far = deficit.queue(view, so_far, claim, self.swap_s * (1.0 - 1.0 / usual.mean))
        return Decision(places, Memory(clock_s, pending, so_far), early=True)

    def _speedup(self, view: HostView, so_far: Tallies, vcpu: VcpuView) -> float | None:
        speedup = measured(view, so_far, vcpu)
        if speedup is None or not self.application_wide:
            return speedup
        threads = sum(is_active(v) for v in view.vcpus if v.key[0] == vcpu.key[0])
        big = len(view.topology.pcpus_of(view.topology.core_types[-1].name))
        return 1.0 + (speedup - 1.0) * min(1.0, big / max(1, threads))

    def _slowness(self, view: HostView, vcpu: VcpuView, usual: "_Usual") -> Sequence[float]:
        """Seconds that the clock goes on in a second on every core type."""
        own = usual.of(vcpu)
        types = view.topology.core_types
        share = (
            (own - usual.least) / (usual.most - usual.least) if usual.most > usual.least else 0.0
        )
        favour = UNFAIRNESS_KEPT * (self.unfairness_factor - 1.0) * share
        weight = vcpu.weight * (1.0 + favour)
        return [speed(types, at, own) / own / weight for at in range(len(types))]


class _Usual:
    """Speedups of a host, and what stands in for those that are not known."""

    def __init__(self, view: HostView, known: Mapping[VcpuKey, float | None]) -> None:
        self._known = known
        found = [s for s in known.values() if s is not None]
        self.least, self.most = min(found, default=1.0), max(found, default=1.0)
        hardware = gain(view.topology.core_types, len(view.topology.core_types) - 1) or 1.0
        self.mean = max(1.0, math.fsum(found) / len(found) if found else hardware)
        by_vm: dict[str, list[float]] = {}
        for (vm, _), speedup in known.items():
            if speedup is not None:
                by_vm.setdefault(vm, []).append(speedup)
        self._vms = {vm: math.fsum(all_) / len(all_) for vm, all_ in by_vm.items()}

    def of(self, vcpu: VcpuView) -> float:
        """Its own speedup, its instance's, or the host's."""
        own = self._known[vcpu.key]
        return self._vms.get(vcpu.key[0], self.mean) if own is None else own


def _progress_s(ran_s: Sequence[float] | None, rate: Sequence[float]) -> float | None:
    if ran_s is None:
        return None
    return math.fsum(s * r for s, r in zip(ran_s, rate, strict=True))
