"""``amp-adaptive-fair``: the most throughput under a bound on the slowdown.

Idea. ``amp-r-fair`` asks an operator for R, of which nobody knows what it will cost whom. Here he
says what nobody shall lose against ``amp-fair``, and everybody has an R of his own: just as much of
his fair share as keeps his loss within the bound. All the rest goes to those who gain most.

Formula. With ``p(f) = 1 + f (s - 1)`` a vCPU's floor is the least f with ``p(f) >= (1 -
max_slowdown) p(f_fair)``. Floors are dealt first, then by speedup as in ``hsp``. That is the
optimum of the linear program "greatest sum of p under those bounds" on two core types, and never
below what any common R allows: with speedups 4, 3, 2, 1.5 on two fast and two slow cores and a
bound of 0.1 a common R of 0.7 gives ASP 3.775, this 4.275. With two vCPUs it is R itself: figure 4
of kwon2011 at e = 1.5 and a bound of 0.1 is R = 50 %.

Source. Beyond the papers; kwon2011 section 4.4 leaves "the dynamic adjustment of fair scheduling
ratios to meet the fairness requirement" to future work. With more core types all types above the
slowest are scaled alike: the bound holds, the optimum is not promised. Who was not tried on a fast
core yet, or whose speedup is not known, keeps his fair share.

Cost. As ``amp-fair``.

When not to use it: without counters (it then is ``amp-fair``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from amp_nova.hardware.relative_speed import speed
from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.parameters import at_least, ratio
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import deal, evenly, ranked_vcpus, room
from amp_nova.policies.placing.score import gains, measured


@dataclass(frozen=True, slots=True)
class AmpAdaptiveFairPolicy:
    """As much by speedup as a bound on everybody's slowdown allows."""

    max_slowdown: float = 0.1
    """What a vCPU may lose at most against ``amp-fair``, as a share of its speed there."""
    hysteresis_ratio: float = 0.02
    """How much more than those on fast cores a challenger must gain."""
    name: str = "amp-adaptive-fair"

    def __post_init__(self) -> None:
        ratio("max_slowdown", self.max_slowdown)
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)

    def decide(self, view: HostView) -> Decision:
        """Whoever is owed most of the fast cores has them next."""
        here, so_far = room(view), deficit.tallies(view)
        score = gains(view, so_far, self.hysteresis_ratio)
        fair, types = evenly(here), view.topology.core_types
        floors = {}
        for vcpu in here.vcpus:
            share, part = fair[vcpu.key], 1.0
            own = measured(view, so_far, vcpu)
            if own is not None:
                speeds = [speed(types, at, own) for at in range(len(types))]
                part = self._part(share, speeds)
            floors[vcpu.key] = tuple(part * s for s in share)
        return deficit.take(view, deal(here, ranked_vcpus(here, score), floors), so_far)

    def _part(self, share: Sequence[float], speeds: Sequence[float]) -> float:
        """How much of its fair share of faster cores a vCPU needs at least."""
        slow = math.fsum(share) * speeds[0]
        gain = math.fsum(s * (v - speeds[0]) for s, v in zip(share, speeds, strict=True))
        if gain <= 0.0:
            return 0.0
        return max(0.0, 1.0 - self.max_slowdown * (slow + gain) / gain)
