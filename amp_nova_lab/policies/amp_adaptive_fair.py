# SPDX-License-Identifier: Apache-2.0
"""``amp-adaptive-fair``: the most throughput under a bound on each vCPU's slowdown.

Intuition. ``amp-r-fair`` asks the operator for R, but what a given R costs each vCPU is unknown.
Here the operator bounds the loss against ``amp-fair``, and each vCPU has its own R: just enough of
its fair share to keep its loss within the bound. All remaining fast-core time goes to the vCPUs
that gain most.

Formula. With ``p(f) = 1 + f (s - 1)``, a vCPU's floor is the least f for which ``p(f) >= (1 -
max_slowdown) p(f_fair)``. Floors are served first, then vCPUs by speedup as in ``hsp``. On two core
types this is the optimum of the linear program that maximises the sum of p under these bounds, and
never below what a common R achieves: with speedups 4, 3, 2, 1.5 on two fast and two slow cores and
a bound of 0.1, a common R of 0.7 gives ASP 3.775, this policy 4.275. With two vCPUs it is the
common R itself: in figure 4 of kwon2011 at e = 1.5, a bound of 0.1 is R = 50 %.

Source. Beyond the papers; kwon2011 section 4.3 leaves "the dynamic adjustment of fair scheduling
ratios to meet the fairness requirement" to future work. With more than two core types, the shares
of all types above the slowest are scaled alike: the bound holds, but the result may not be optimal.
A vCPU keeps its fair share until it has been tried on a fast core and its speedup is known.

Cost. As ``amp-fair``.

When not to use it. Without counters: it then equals ``amp-fair``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from amp_nova.hardware.effective_speed import speed
from amp_nova.policies.api import Decision, HostView, at_least
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import (
    distribute,
    evenly,
    ranked_vcpus,
    shared_capacity,
)
from amp_nova.policies.placing.score import gains, known_speedups
from amp_nova_lab.policies.parameters import ratio


@dataclass(frozen=True, slots=True)
class AmpAdaptiveFairPolicy:
    """Fast cores by speedup, within a bound on each vCPU's slowdown."""

    max_slowdown: float = 0.1
    """The most that a vCPU may lose against ``amp-fair``, as a share of its speed there."""
    hysteresis_ratio: float = 0.02
    """By how much a challenger's gain must exceed that of a vCPU on a fast core."""
    name: str = "amp-adaptive-fair"

    def __post_init__(self) -> None:
        ratio("max_slowdown", self.max_slowdown)
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)

    def decide(self, view: HostView) -> Decision:
        """The vCPUs furthest behind their share get the fast cores."""
        shared, accounts = shared_capacity(view), deficit.update(view, view.memory)
        speedups = known_speedups(view, accounts)
        score = gains(speedups, accounts, self.hysteresis_ratio)
        types = view.topology.core_types
        floors = dict(evenly(shared))
        for vcpu in shared.vcpus:
            speedup = speedups[vcpu.key]
            if speedup is not None:
                speeds = [speed(types, at, speedup) for at in range(len(types))]
                needed = self._needed_ratio(floors[vcpu.key], speeds)
                floors[vcpu.key] = tuple([needed * s for s in floors[vcpu.key]])
        shares = distribute(shared, ranked_vcpus(shared, score), floors)
        return deficit.by_shares(view, shared, shares, accounts)

    def _needed_ratio(self, share: Sequence[float], speeds: Sequence[float]) -> float:
        """The least part of its fair share of faster cores that keeps a vCPU within the bound."""
        slow = math.fsum(share) * speeds[0]
        gain = math.fsum([s * (v - speeds[0]) for s, v in zip(share, speeds, strict=True)])
        if gain <= 0.0:
            return 0.0
        return max(0.0, 1.0 - self.max_slowdown * (slow + gain) / gain)
