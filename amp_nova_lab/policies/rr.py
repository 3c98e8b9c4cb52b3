# SPDX-License-Identifier: Apache-2.0
"""``rr``: all instances share the fast cores equally.

Intuition. The oldest fair scheduler for asymmetric cores: every instance has the same turn on the
big cores, however many vCPUs it has and whatever it gains from them.

Formula. With NB big cores and A active instances, each instance has ``NB / A`` of their time. Its
vCPUs divide that, each up to all of its own time. Oracle (saez2015, four single-threaded workloads,
NB = 2): f = 0.5 for all; for speedups 4, 3, 2, 1.5 ASP is 3.25 and unfairness 1.333.

Source. saez2015 section 2.3 (RR, and the literature it cites). There are no priorities.

Cost. As ``amp-fair``.

When not to use it. When slowdowns should be equal. With equal shares the workload with the highest
speedup is slowed down most; ``acfs`` equalises slowdowns instead.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import by_instance, evenly, shared_capacity


@dataclass(frozen=True, slots=True)
class RrPolicy:
    """The same fast-core time for every instance."""

    name: str = "rr"

    def decide(self, view: HostView) -> Decision:
        """The vCPUs furthest behind their share get the big cores."""
        shared, accounts = shared_capacity(view), deficit.update(view, view.memory)
        size = {name: len(vcpus) for name, vcpus in by_instance(shared).items()}
        shares = evenly(shared, lambda v: 1.0 / size[v.key[0]])
        return deficit.by_shares(view, shared, shares, accounts)
