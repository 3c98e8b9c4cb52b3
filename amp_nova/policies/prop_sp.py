"""``prop-sp``: big-core time in proportion to speedup and priority.

Idea. Between ``hsp`` and ``rr``: who gains more has more of the big cores, and all have some.

Formula. A vCPU's share of big-core time is in proportion to ``SF x weight``, and at most all of its
own time; what that leaves is divided among the others in the same proportion.

Source. saez2015 section 2.3 (Prop-SP); priorities are ``amp:weight``. A vCPU whose speedup is not
known counts with the mean of those that are.

Cost. As ``amp-fair``.

When not to use it: where slowdowns shall be equal. Published: better throughput than fair shares,
but "high unfairness in some cases".
"""

import math
from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import evenly, room
from amp_nova.policies.placing.score import measured


@dataclass(frozen=True, slots=True)
class PropSpPolicy:
    """Big-core time in proportion to speedup times weight."""

    name: str = "prop-sp"

    def decide(self, view: HostView) -> Decision:
        """Whoever is owed most of the big cores has them next."""
        here, so_far = room(view), deficit.tallies(view)
        known = {v.key: measured(view, so_far, v) for v in here.vcpus}
        found = [s for s in known.values() if s is not None]
        usual = math.fsum(found) / len(found) if found else 1.0
        return deficit.take(
            view, evenly(here, lambda v: v.weight * (known[v.key] or usual)), so_far
        )
