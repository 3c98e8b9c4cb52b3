"""``a-dwrr``: the same scaled CPU time for every vCPU.

Idea. A second on a big core is worth more than one on a small core, by what the hardware says.
Whoever has had least, by that measure and by his weight, goes to a big core.

Formula. Scaled time goes on by ``coefficient(core type) / amp:weight`` a second; the least scaled
times have the fastest cores. With equal weights and all busy everybody has the same share of them.

Source. saez2015 section 2.3 (A-DWRR of Li et al., whose rounds keep sleepers from saving up; here a
clock counts per second of demand). What a workload makes of a fast core is ignored; an instance
with many vCPUs gets as many shares.

Cost. Moves every interval; ``N log N``.

When not to use it: where speedups differ: as ``rr``, it slows down most whoever gains most.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from amp_nova.hardware.relative_speed import gain
from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit, virtual_time
from amp_nova.policies.placing.deficit import Tallies


@dataclass(frozen=True, slots=True)
class Memory:
    """Scaled CPU time of every vCPU."""

    clock_s: Mapping[VcpuKey, float] = field(default_factory=dict)
    tallies: Tallies = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ADwrrPolicy:
    """Even scaled CPU time."""

    name: str = "a-dwrr"

    def decide(self, view: HostView) -> Decision:
        """Whoever had least scaled time has a big core next."""
        memory = view.memory if isinstance(view.memory, Memory) else Memory()
        types = view.topology.core_types
        worth = [gain(types, at) or 1.0 + at for at in range(len(types))]
        steps = {}
        for vcpu in view.vcpus:
            ran_s = virtual_time.wanted_all(view, vcpu)
            steps[vcpu.key] = None if ran_s is None else _scaled_s(ran_s, worth) / vcpu.weight
        clock_s = virtual_time.advance(view, memory.clock_s, steps)
        so_far = deficit.tallies(view, dict(memory.tallies))
        claim = {key: -at_s for key, at_s in clock_s.items()}
        places, so_far = deficit.queue(view, so_far, claim)
        return Decision(places, Memory(clock_s, so_far), early=True)


def _scaled_s(ran_s: Sequence[float], worth: Sequence[float]) -> float:
    return math.fsum(s * w for s, w in zip(ran_s, worth, strict=True))
