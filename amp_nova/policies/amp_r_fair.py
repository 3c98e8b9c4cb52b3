"""``amp-r-fair``: part of the fast-core time is shared equally, the rest goes by efficiency.

Intuition. ``amp-vm`` may leave an instance on slow cores for good; ``amp-fair`` wastes fast cores
on vCPUs that gain nothing from them. Here the operator chooses how much throughput to trade for
fairness.

Formula. ``R = fair_ratio`` of the fast-core time is shared equally by all active vCPUs; the rest
goes by score as in ``amp-vm``. Progress and slowdown lie between those of the two policies in
proportion to R: ``f = R x f_fair + (1 - R) x f_vm`` while no vCPU's share is full.

Source. kwon2011 sections 2.2, 3.3 and 4.3 (amp-R%-fair). Deviations, and ``printed=2.1``: see
``amp-vm``. Oracle: figure 4 at all R. Published worst slowdown against ``amp-fair`` with twelve
single-vCPU instances (8M-4L): 11.93, 10.4, 9.36 and 6.19 % at R = 20, 40, 60 and 80 %.

Cost. As ``amp-fair``.

When not to use it. When you want to bound the slowdown itself; use ``amp-adaptive-fair``.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.parameters import at_least, ratio, sections
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import by_rank, ranked_instances, shared_capacity
from amp_nova.policies.placing.score import efficiency, printed_efficiency

SCORE = "2.1"


@dataclass(frozen=True, slots=True)
class AmpRFairPolicy:
    """Fast cores partly in equal shares, partly by efficiency."""

    fair_ratio: float = 0.5
    """Share of the fast-core time that is shared equally: 1 is ``amp-fair``, 0 is ``amp-vm``."""
    hysteresis_ratio: float = 0.05
    """By how much a challenger's score must exceed that of a vCPU on a fast core."""
    printed: str = ""
    """Sections of kwon2011 to follow as printed: 2.1."""
    name: str = "amp-r-fair"

    def __post_init__(self) -> None:
        ratio("fair_ratio", self.fair_ratio)
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)
        sections(self.printed, (SCORE,))

    def decide(self, view: HostView) -> Decision:
        """The vCPUs furthest behind their share get the fast cores."""
        shared, accounts = shared_capacity(view), deficit.update(view, view.memory)
        score = efficiency(view, accounts, self.hysteresis_ratio)
        score = printed_efficiency if SCORE in self.printed else score
        ranks = ranked_instances(shared, score)
        return deficit.by_shares(view, shared, by_rank(shared, ranks, self.fair_ratio), accounts)
