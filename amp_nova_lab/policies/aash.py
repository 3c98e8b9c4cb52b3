# SPDX-License-Identifier: Apache-2.0
"""``aash``: every instance has its share of the fast cores, each vCPU scheduled on its own.

Intuition. An instance's share of the fast cores follows from its weight and is divided among its
vCPUs. Which vCPU runs where and when does not depend on the others. It is a baseline: the threads
of a parallel program are on cores of different speeds at any moment, so the program runs at the
pace of the slowest.

Formula. An instance of weight w with n active vCPUs gets fast-core time in proportion to w. Each
vCPU gets the n-th part of that, up to all of its own time.

Source. The asymmetry-aware scheduler for hypervisors of Kazempour et al., as described and measured
in chen2014 sections 4 and 5. Deviation: an instance of n vCPUs has one share by its weight, not n.
As printed (section 5) all vCPUs share the fast cores equally, on the assumption that weights are in
proportion to the number of vCPUs; a tenant then gains by booking more vCPUs. ``printed=5`` does so.

Cost. As ``amp-fair``.

When not to use it. With parallel programs that synchronise often; ``integrated`` keeps their vCPUs
together. ``amp-fair`` shares by vCPU rather than by instance.
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import by_instance, evenly, shared_capacity
from amp_nova_lab.policies.parameters import sections

BY_VCPU = "5"


@dataclass(frozen=True, slots=True)
class AashPolicy:
    """Fast-core time by the instance's weight, vCPU by vCPU."""

    printed: str = ""
    """Sections of chen2014 to follow as printed: 5."""
    name: str = "aash"

    def __post_init__(self) -> None:
        sections(self.printed, (BY_VCPU,))

    def decide(self, view: HostView) -> Decision:
        """The vCPUs furthest behind their share get the fast cores."""
        shared, accounts = shared_capacity(view), deficit.update(view, view.memory)
        if BY_VCPU in self.printed:
            return deficit.by_shares(view, shared, evenly(shared), accounts)
        size = {name: len(vcpus) for name, vcpus in by_instance(shared).items()}
        shares = evenly(shared, lambda v: v.weight / size[v.key[0]])
        return deficit.by_shares(view, shared, shares, accounts)
