# SPDX-License-Identifier: Apache-2.0
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

from amp_nova_lab.policies.amp_vm import AmpVmPolicy
from amp_nova_lab.policies.parameters import ratio


@dataclass(frozen=True, slots=True)
class AmpRFairPolicy(AmpVmPolicy):
    """Fast cores partly in equal shares, partly by efficiency."""

    name: str = "amp-r-fair"
    fair_ratio: float = 0.5
    """Share of the fast-core time that is shared equally: 1 is ``amp-fair``, 0 is ``amp-vm``."""

    def __post_init__(self) -> None:
        AmpVmPolicy.__post_init__(self)  # slots make "super()" refer to another class
        ratio("fair_ratio", self.fair_ratio)

    @property
    def even_ratio(self) -> float:
        """The part of the fast-core time that is shared equally."""
        return self.fair_ratio
