"""``aash``: every vCPU shares the fast cores fairly, each scheduled on its own.

Idea. An instance's part of the fast cores follows from its weight and is divided among its vCPUs;
which of them runs where and when does not depend on the others. A baseline: a parallel program has
its threads on cores of different speed at any moment, and runs at the pace of the slowest.

Formula. An instance of weight w with n active vCPUs has fast-core time in proportion to w, each of
its vCPUs ``w / n`` of that, none more than all of its own time.

Source. The asymmetry-aware scheduler for hypervisors of Kazempour et al., as chen2014 section 4
describes and measures it.

Cost. As ``amp-fair``.

When not to use it: with parallel programs that synchronise often; ``integrated`` keeps those
together. With instances of different size it is unlike ``amp-fair``, which counts vCPUs and not
instances.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import evenly, room, vms


@dataclass(frozen=True, slots=True)
class AashPolicy:
    """Fast-core time by the instance's weight, vCPU by vCPU."""

    name: str = "aash"

    def decide(self, view: HostView) -> Decision:
        """Whoever had least of his part of the fast cores has them next."""
        here = room(view)
        count = {vm: len(vcpus) for vm, vcpus in vms(here).items()}
        return deficit.take(view, evenly(here, lambda v: v.weight / count[v.key[0]]))
