"""``eqp``: equal progress, from the total time on each core type and the current speedup.

Intuition. The vCPUs that were slowed down most so far get the big cores.

Formula. ``slowdown = (t_big + t_small) / (t_big + t_small / SF)``, where t are a vCPU's CPU seconds
on each core type since it started and SF is its current speedup. The highest slowdowns get the big
cores.

Source. saez2015 section 2.3 (EQP). With constant speedups it converges to the same shares as
``acfs``. A vCPU with an unknown SF counts with the mean of the known ones or, if there are none,
with the hardware's. The published weaknesses are kept, because the policy exists for comparison:
the current SF is applied to the past, so a phase change rewrites history; there are no priorities;
and it counts vCPUs, not instances.

Cost. Moves every interval; ``N log N``.

When not to use it. With programs that have phases; ``acfs`` counts each phase at its own speedup.
"""

import math
from dataclasses import dataclass

from amp_nova.hardware.relative_speed import gain, speed
from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.score import known_speedup, mean_known


@dataclass(frozen=True, slots=True)
class EqpPolicy:
    """Equal slowdown of vCPUs, from totals."""

    name: str = "eqp"

    def decide(self, view: HostView) -> Decision:
        """The vCPUs with the highest slowdown get the big cores."""
        types = view.topology.core_types
        accounts = deficit.update(view, view.memory)
        known = {v.key: known_speedup(view, accounts, v) for v in view.vcpus}
        mean = mean_known(known.values(), gain(types, len(types) - 1) or 1.0)
        slowdown = {}
        for key, speedup in known.items():
            own, ran_s = speedup or mean, accounts[key].ran_s
            progress_s = math.fsum(s * speed(types, at, own) / own for at, s in enumerate(ran_s))
            slowdown[key] = math.fsum(ran_s) / progress_s if progress_s > 0.0 else 1.0
        return Decision(*deficit.by_claim(view, accounts, slowdown), early=True)
