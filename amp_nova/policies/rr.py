"""``rr``: the fast cores are shared evenly among instances.

Idea. The oldest fair scheduler for asymmetric cores: an instance has its turn on the big cores like
any other, however many vCPUs it has and whatever it makes of them.

Formula. With NB big cores and A active instances, each has ``NB / A`` of their time, its vCPUs
divide that, and none has more than all of its own time. Oracle (saez2015, four single-threaded
workloads, NB = 2): f = 0.5 for all; for speedups 4, 3, 2, 1.5 ASP is 3.25 and unfairness 1.333.

Source. saez2015 section 2.3 (RR, and the literature it cites); no priorities.

Cost. As ``amp-fair``.

When not to use it: where slowdowns shall be equal. An equal share slows down most whoever has the
highest speedup; ``acfs`` evens that out.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import evenly, room, vms


@dataclass(frozen=True, slots=True)
class RrPolicy:
    """The same fast-core time for every instance."""

    name: str = "rr"

    def decide(self, view: HostView) -> Decision:
        """Whoever had least of the big cores has them next."""
        here = room(view)
        count = {vm: len(vcpus) for vm, vcpus in vms(here).items()}
        return deficit.take(view, evenly(here, lambda v: 1.0 / count[v.key[0]]))
