"""``amp-fair``: everybody has the same share of the fast cores, whatever he makes of it.

Idea. Fast cores are a good that all pay for alike, so all use them alike: a vCPU's speed then does
not depend on its neighbours' programs, nor on luck. It is what other policies' losses are measured
against.

Formula. With F fast cores and N active vCPUs each spends ``min(1, F / N)`` of its time on a fast
one, and likewise on every other core type, from the fastest down; ``amp:weight`` divides fast-core
time by weight. Progress of a workload with speedup s is ``1 + f (s - 1)``.

Source. kwon2011 section 3.2 (amp-fair) and 4.4; oracle: figure 4 at 100 % fair.

Cost. ``F`` vCPUs and those they displace move every interval; ``N log N``.

When not to use it: when throughput matters more than likeness. A vCPU that gains nothing from a
fast core takes as much of its time as one that runs twice as fast there.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import evenly, room


@dataclass(frozen=True, slots=True)
class AmpFairPolicy:
    """The same share of every core type for every vCPU."""

    name: str = "amp-fair"

    def decide(self, view: HostView) -> Decision:
        """Whoever had least of the fast cores has them next."""
        return deficit.take(view, evenly(room(view)))
