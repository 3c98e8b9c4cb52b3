"""``amp-r-fair``: a part of the fast cores for all alike, the rest for those who use it best.

Idea. ``amp-vm`` may leave an instance on slow cores for ever, ``amp-fair`` wastes fast cores on
those who gain nothing. In between, an operator chooses how much of the one to give up for the
other.

Formula. ``R = fair_ratio`` of the fast-core time is spread evenly over all active vCPUs, the rest
goes by score as in ``amp-vm``. Progress and slowdown are between those of the two in proportion to
R: ``f = R x f_fair + (1 - R) x f_vm`` as long as nobody's share is full.

Source. kwon2011 sections 2.2, 3.2 and 4.4 (amp-R%-fair); oracle: figure 4 at all R. Published,
worst slowdown against ``amp-fair`` with twelve single-vCPU instances (8M-4L): 11.93, 10.4, 9.36 and
6.19 % at R = 20, 40, 60 and 80 %.

Cost. As ``amp-fair``.

When not to use it: when what you want is a bound on the slowdown; ``amp-adaptive-fair`` takes that.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.parameters import at_least, ratio
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import by_rank, ranked_vms, room
from amp_nova.policies.placing.score import efficiency


@dataclass(frozen=True, slots=True)
class AmpRFairPolicy:
    """Fast cores partly for all, partly by efficiency."""

    fair_ratio: float = 0.5
    """Share of the fast-core time that is spread evenly: 1 is ``amp-fair``, 0 is ``amp-vm``."""
    hysteresis_ratio: float = 0.05
    """How much better than those on fast cores a challenger must be."""
    name: str = "amp-r-fair"

    def __post_init__(self) -> None:
        ratio("fair_ratio", self.fair_ratio)
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)

    def decide(self, view: HostView) -> Decision:
        """Whoever is owed most of the fast cores has them next."""
        here, so_far = room(view), deficit.tallies(view)
        ranks = ranked_vms(here, efficiency(view, so_far, self.hysteresis_ratio))
        return deficit.take(view, by_rank(here, ranks, self.fair_ratio), so_far)
