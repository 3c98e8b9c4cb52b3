"""``amp-vcpu``: the fast cores go to the vCPUs that use them best, one by one.

Idea. As ``amp-vm``, but a vCPU is judged by what it does itself: of an instance with one busy
thread that one gets the fast core.

Formula. ``score = IPC x utilization`` of the vCPU; the highest scores have the fast cores.

Source. kwon2011 sections 3.2 and 4.2. There it does no better than ``amp-vm``, and worse in a mix
where it moved vCPUs between last-level caches 5.6 times as often.

Cost. More moves than ``amp-vm``; ``N log N``.

When not to use it: for guests whose threads wander from vCPU to vCPU, and for parallel programs,
whose slower threads stay on slow cores with nobody to take turns with.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.parameters import at_least
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import by_rank, ranked_vcpus, room
from amp_nova.policies.placing.score import efficiency


@dataclass(frozen=True, slots=True)
class AmpVcpuPolicy:
    """Fast cores by the vCPU's own efficiency score."""

    hysteresis_ratio: float = 0.05
    """How much better than those on fast cores a challenger must be."""
    name: str = "amp-vcpu"

    def __post_init__(self) -> None:
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)

    def decide(self, view: HostView) -> Decision:
        """The best vCPUs have the fast cores."""
        here, so_far = room(view), deficit.tallies(view)
        ranks = ranked_vcpus(here, efficiency(view, so_far, self.hysteresis_ratio))
        return deficit.take(view, by_rank(here, ranks), so_far)
