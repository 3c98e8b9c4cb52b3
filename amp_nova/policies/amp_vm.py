"""``amp-vm``: the fast cores go to the instances that use them best.

Idea. A core that retires many instructions per cycle is not waiting for memory, so a faster one
helps. All vCPUs of an instance carry the mean score of those that are active: guests spread their
work over their vCPUs, and a vCPU by itself says little about what it will do next.

Formula. ``score = IPC x utilization``. Instances take the fast cores in the order of their scores,
as far as they go; the one that straddles the border rotates its vCPUs, so that each has the same
share of its fast cores. With more core types the next best take the next fastest.

Source. kwon2011 sections 2.2, 3.1 and 3.2 (amp-vm); oracle: figure 4 at 0 % fair. Published: up to
40 % above the credit scheduler, up to 28 % above ``amp-fair``; a slowdown of up to 13.89 % against
``amp-fair`` for those who stay on slow cores. Added to the paper: an IPC that was counted on a fast
core is converted to a slow one where the speedup is known, and the incumbent has
``hysteresis_ratio`` in hand. Until an instance has a score it has the share that ``amp-fair`` would
give it.

Cost. A few moves when the order changes, and those of the one instance that rotates; ``N log N``.

When not to use it: when everybody pays for a fair share. IPC is blind to workloads that are slow
for other reasons than memory and gain from a fast core all the same (kwon2011 section 2.2); ``hsp``
ranks by measured speedup.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.parameters import at_least
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import by_rank, ranked_vms, room
from amp_nova.policies.placing.score import efficiency


@dataclass(frozen=True, slots=True)
class AmpVmPolicy:
    """Fast cores by the instance's efficiency score."""

    hysteresis_ratio: float = 0.05
    """How much better than those on fast cores a challenger must be."""
    name: str = "amp-vm"

    def __post_init__(self) -> None:
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)

    def decide(self, view: HostView) -> Decision:
        """The best instances have the fast cores."""
        here, so_far = room(view), deficit.tallies(view)
        ranks = ranked_vms(here, efficiency(view, so_far, self.hysteresis_ratio))
        return deficit.take(view, by_rank(here, ranks), so_far)
