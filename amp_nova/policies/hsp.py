"""``hsp``: the big cores for the highest speedups.

Idea. Throughput is a sum of speeds, so each big core goes where it adds most. It is the upper bound
of throughput, and as unfair as can be: whoever gains least never sees a big core.

Formula. Instances take the big cores in the order of their mean speedup, ``SF = IPS_big /
IPS_small``; ``amp:weight`` multiplies what a big core adds, ``SF - 1``. Oracle (saez2015, NB = 2):
for speedups 4, 3, 2, 1.5 ASP is 5.0 and unfairness 2.0. What a vCPU gains counts for the share of
time that it usually wants to run: a big core adds nothing while its vCPU sleeps.

Source. saez2015 section 2.2 (HSP), whose workloads never sleep. Added to the paper: a vCPU that
never ran on a big core is tried there for a turn, since no model is sure of it; until then it has
an even share.

Cost. Few moves once all were tried; ``N log N``.

When not to use it: when tenants compare. It has the worst unfairness of all in saez2015, figure 1.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.parameters import at_least
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import by_rank, ranked_vms, room
from amp_nova.policies.placing.score import gains


@dataclass(frozen=True, slots=True)
class HspPolicy:
    """Big cores to the highest speedups."""

    hysteresis_ratio: float = 0.02
    """How much more than those on big cores a challenger must gain."""
    name: str = "hsp"

    def __post_init__(self) -> None:
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)

    def decide(self, view: HostView) -> Decision:
        """The instances that gain most have the big cores."""
        here, so_far = room(view), deficit.tallies(view)
        ranks = ranked_vms(here, gains(view, so_far, self.hysteresis_ratio))
        return deficit.take(view, by_rank(here, ranks), so_far)
