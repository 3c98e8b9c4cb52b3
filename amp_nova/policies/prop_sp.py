"""``prop-sp``: big-core time in proportion to speedup and priority.

Intuition. A compromise between ``hsp`` and ``rr``: vCPUs that gain more have more of the big cores,
and all have some.

Formula. A vCPU's share of big-core time is in proportion to ``SF x weight``, at most all of its own
time. What exceeds that is divided among the others in the same proportion.

Source. saez2015 section 2.3 (Prop-SP), with ``amp:weight`` as the priority. A vCPU with an unknown
speedup counts with the mean of the known ones.

Cost. As ``amp-fair``.

When not to use it. Where slowdowns should be equal. Published: better throughput than fair shares,
but "high unfairness in some cases".
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import evenly, shared_capacity
from amp_nova.policies.placing.score import known_speedup, mean_known


@dataclass(frozen=True, slots=True)
class PropSpPolicy:
    """Big-core time in proportion to speedup times weight."""

    name: str = "prop-sp"

    def decide(self, view: HostView) -> Decision:
        """The vCPUs furthest behind their share get the big cores."""
        shared, accounts = shared_capacity(view), deficit.update(view, view.memory)
        known = {v.key: known_speedup(view, accounts, v) for v in shared.vcpus}
        mean = mean_known(known.values(), 1.0)
        shares = evenly(shared, lambda v: v.weight * (known[v.key] or mean))
        return deficit.by_shares(view, shares, accounts)
