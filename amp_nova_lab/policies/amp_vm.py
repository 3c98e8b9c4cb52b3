# SPDX-License-Identifier: Apache-2.0
"""``amp-vm``: the fast cores go to the instances that use them best.

Intuition. A core that retires many instructions per cycle is not waiting for memory, so a faster
core helps. All vCPUs of an instance carry the mean score of its active vCPUs: guests spread their
work over their vCPUs, and one vCPU by itself says little about what it will do next.

Formula. ``score = IPC x utilization``. Instances take the fast cores in the order of their scores.
The last instance to get any rotates its vCPUs, so that they share its fast cores equally. With more
core types, the next instances take the next fastest type.

Source. kwon2011 sections 2.1, 3.2 and 3.3 (amp-vm). Oracle: figure 4 at 0 % fair. Published: up to
40 % faster than the credit scheduler and up to 28 % faster than ``amp-fair``; instances that stay
on slow cores lose up to 13.89 % against ``amp-fair``. Deviations, and what they gain:

* An IPC counted on a fast core is converted to a slow core if the speedup was measured on both:
  work that waits for memory has a lower IPC on a fast core, so two such instances would change
  places forever.
* Utilization is the time a vCPU wants to run, since the host, not the vCPU, causes its waits.
* Incumbents are favoured by ``hysteresis_ratio``, which saves moves; ``amp:weight`` multiplies the
  score.
* An instance without a score has the share that ``amp-fair`` would give it.

``printed=2.1`` scores as the paper does: IPC x utilization as counted, without the first three.

Cost. A few moves when the order changes, plus those of the one instance that rotates; ``N log N``.

When not to use it. When tenants pay for a fair share. IPC is also blind to workloads that are slow
for reasons other than memory and would gain from a fast core (kwon2011 section 2.1); ``hsp`` ranks
by measured speedup instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView, at_least
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import (
    Group,
    Score,
    SharedCapacity,
    by_rank,
    ranked_instances,
    shared_capacity,
)
from amp_nova_lab.policies.efficiency import efficiency, printed_efficiency
from amp_nova_lab.policies.parameters import sections

SCORE = "2.1"


@dataclass(frozen=True, slots=True)
class AmpVmPolicy:
    """Fast cores by the instance's efficiency score."""

    hysteresis_ratio: float = 0.05
    """By how much a challenger's score must exceed that of a vCPU on a fast core."""
    printed: str = ""
    """Sections of kwon2011 to follow as printed: 2.1."""
    name: str = "amp-vm"

    def __post_init__(self) -> None:
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)
        sections(self.printed, (SCORE,))

    def decide(self, view: HostView) -> Decision:
        """Those with the highest scores get the fast cores."""
        shared, accounts = shared_capacity(view), deficit.update(view, view.memory)
        score = efficiency(view, accounts, self.hysteresis_ratio)
        score = printed_efficiency if SCORE in self.printed else score
        shares = by_rank(shared, self.ranks(shared, score), self.even_ratio)
        return deficit.by_shares(view, shared, shares, accounts)

    def ranks(self, shared: SharedCapacity, score: Score) -> Sequence[Group]:
        """Who is served in which order."""
        return ranked_instances(shared, score)

    @property
    def even_ratio(self) -> float:
        """The part of the fast-core time that is shared equally."""
        return 0.0
