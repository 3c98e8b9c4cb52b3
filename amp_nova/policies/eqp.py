"""``eqp``: equal progress, from the total time on each core type and the present speedup.

Idea. Whoever was slowed down most so far goes to a big core.

Formula. ``slowdown = (t_big + t_small) / (t_big + t_small / SF)``: t are a vCPU's CPU seconds on
each core type since it began, SF its speedup now. The highest slowdowns have the big cores.

Source. saez2015 section 2.3 (EQP). With constant speedups it comes to where ``acfs`` does. Known
weaknesses, kept since it is there to be compared with: the present SF is applied to the past, so a
phase change rewrites history; no priorities; single vCPUs, not instances. One whose SF is not known
counts as the mean of those that are, or as the hardware says.

Cost. Moves every interval; ``N log N``.

When not to use it: with programs that have phases; ``acfs`` counts each at its own speedup.
"""

import math
from dataclasses import dataclass

from amp_nova.hardware.relative_speed import gain, speed
from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.score import measured


@dataclass(frozen=True, slots=True)
class EqpPolicy:
    """Equal slowdown of vCPUs, by totals."""

    name: str = "eqp"

    def decide(self, view: HostView) -> Decision:
        """Whoever was slowed down most has a big core next."""
        types = view.topology.core_types
        so_far = deficit.tallies(view)
        known = {v.key: measured(view, so_far, v) for v in view.vcpus}
        found = [s for s in known.values() if s is not None]
        usual = math.fsum(found) / len(found) if found else gain(types, len(types) - 1) or 1.0
        claim = {}
        for vcpu in view.vcpus:
            own = known[vcpu.key] or usual
            ran_s = so_far[vcpu.key].ran_s
            progress_s = math.fsum(s * speed(types, at, own) / own for at, s in enumerate(ran_s))
            claim[vcpu.key] = math.fsum(ran_s) / progress_s if progress_s > 0.0 else 1.0
        return Decision(*deficit.queue(view, so_far, claim), early=True)
