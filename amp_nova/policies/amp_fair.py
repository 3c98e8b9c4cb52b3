# SPDX-License-Identifier: Apache-2.0
"""``amp-fair``: every vCPU has the same share of the fast cores, whatever it gains from them.

Intuition. All tenants pay for the fast cores, so all use them alike. A vCPU's speed then depends
neither on its neighbours' programs nor on luck. The losses of other policies are measured against
this one.

Formula. With F fast cores and N active vCPUs, each spends ``min(1, F / N)`` of its time on a fast
core; every other core type is shared the same way, from the fastest down. ``amp:weight`` divides
fast-core time by weight. A workload with speedup s and a share f of fast-core time progresses at
``1 + f (s - 1)``.

Source. kwon2011 section 3.3 (amp-fair) and section 4.3. Oracle: figure 4 at 100 % fair.

Cost. F vCPUs, and those they displace, move every interval; ``N log N``.

When not to use it. When throughput matters more than equality: a vCPU that gains nothing from a
fast core takes as much of its time as one that runs twice as fast there.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import evenly, shared_capacity


@dataclass(frozen=True, slots=True)
class AmpFairPolicy:
    """The same share of every core type for every vCPU."""

    name: str = "amp-fair"

    def decide(self, view: HostView) -> Decision:
        """The vCPUs furthest behind their share get the fast cores."""
        shared, accounts = shared_capacity(view), deficit.update(view, view.memory)
        return deficit.by_shares(view, shared, evenly(shared), accounts)
