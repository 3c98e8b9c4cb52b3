"""``amp-vcpu``: the fast cores go to the vCPUs that use them best, one by one.

Intuition. As ``amp-vm``, but each vCPU is judged by its own work. In an instance with one busy
thread, the vCPU that runs it gets the fast core.

Formula. ``score = IPC x utilization`` of the vCPU. The highest scores get the fast cores.

Source. kwon2011 sections 3.3 and 4.2. There it performs no better than ``amp-vm``, and worse in a
mix where it migrated vCPUs between last-level caches 5.6 times as often. Deviations are those of
``amp-vm``, as is ``printed=2.1``.

Cost. More moves than ``amp-vm``; ``N log N``.

When not to use it. For guests whose threads wander between vCPUs, and for parallel programs: their
slower threads stay on slow cores and never take turns with the others.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.parameters import at_least, sections
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import by_rank, ranked_vcpus, shared_capacity
from amp_nova.policies.placing.score import efficiency, printed_efficiency

SCORE = "2.1"


@dataclass(frozen=True, slots=True)
class AmpVcpuPolicy:
    """Fast cores by the vCPU's own efficiency score."""

    hysteresis_ratio: float = 0.05
    """By how much a challenger's score must exceed that of a vCPU on a fast core."""
    printed: str = ""
    """Sections of kwon2011 to follow as printed: 2.1."""
    name: str = "amp-vcpu"

    def __post_init__(self) -> None:
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)
        sections(self.printed, (SCORE,))

    def decide(self, view: HostView) -> Decision:
        """The vCPUs with the highest scores get the fast cores."""
        shared, accounts = shared_capacity(view), deficit.update(view, view.memory)
        score = efficiency(view, accounts, self.hysteresis_ratio)
        score = printed_efficiency if SCORE in self.printed else score
        ranks = ranked_vcpus(shared, score)
        return deficit.by_shares(view, shared, by_rank(shared, ranks), accounts)
