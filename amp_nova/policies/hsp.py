"""``hsp``: the big cores go to the highest speedups.

Intuition. Throughput is a sum of speeds, so each big core goes where it adds most. This is the
upper bound of throughput and of unfairness: the workloads that gain least never run on a big core.

Formula. Instances take the big cores in the order of their mean speedup, ``SF = IPS_big /
IPS_small``. ``amp:weight`` multiplies what a big core adds, ``SF - 1``. Oracle (saez2015, NB = 2):
for speedups 4, 3, 2, 1.5 ASP is 5.0 and unfairness 2.0. A gain counts for the share of time that
the vCPU usually wants to run, because a big core adds nothing while its vCPU sleeps.

Source. saez2015 section 2.2 (HSP), whose workloads never sleep. Added to the paper: a vCPU that
never ran on a big core has an even share until it was tried there, because no model can be sure of
its speedup.

Cost. Few moves once every vCPU was tried; ``N log N``.

When not to use it. When tenants compare their speeds: of all policies in saez2015, figure 1, it is
the most unfair.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.parameters import at_least
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import by_rank, ranked_instances, shared_capacity
from amp_nova.policies.placing.score import gains


@dataclass(frozen=True, slots=True)
class HspPolicy:
    """Big cores to the highest speedups."""

    hysteresis_ratio: float = 0.02
    """By how much a challenger's gain must exceed that of a vCPU on a big core."""
    name: str = "hsp"

    def __post_init__(self) -> None:
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)

    def decide(self, view: HostView) -> Decision:
        """The instances that gain most get the big cores."""
        shared, accounts = shared_capacity(view), deficit.update(view, view.memory)
        ranks = ranked_instances(shared, gains(view, accounts, self.hysteresis_ratio))
        return deficit.by_shares(view, by_rank(shared, ranks), accounts)
