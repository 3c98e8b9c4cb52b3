# SPDX-License-Identifier: Apache-2.0
"""``hsp``: the big cores go to the highest speedups.

Intuition. Throughput is a sum of speeds, so the instances that gain most from the big cores get
them. Nothing is more unfair: the workloads that gain least never run on a big core.

Formula. Instances take the big cores in the order of their application-wide speedup, ``1 + (SF - 1)
min(1, NB / n)`` with ``SF = IPS_big / IPS_small`` and n runnable vCPUs; the vCPUs of the last one
take turns. ``amp:weight`` multiplies what big cores add. Oracle (saez2015, NB = 2): for speedups 4,
3, 2, 1.5 ASP is 5.0 and unfairness 2.0.

Source. saez2015 section 2.2 (HSP). Deviations, and what they gain:

* A gain counts for the share of time that the vCPU usually wants to run, because a big core adds
  nothing while its vCPU sleeps; the paper's workloads never sleep.
* A vCPU that never ran on a big core has an even share until it has been tried there, because no
  model can be sure of its speedup. (As printed: ``amp_nova_lab/policies/as_printed``.)
* A challenger must gain more by ``hysteresis_ratio``, which saves moves when estimates are noisy.
* ``per_vcpu=true`` ranks vCPUs by their own SF, like the schedulers that preceded the paper.

Cost. Few moves once every vCPU has been tried; ``N log N``.

When not to use it. When tenants compare their speeds: of all policies in saez2015, figure 1, it is
the most unfair.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import Decision, HostView, VcpuView, at_least
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import (
    by_rank,
    ranked_instances,
    ranked_vcpus,
    shared_capacity,
)
from amp_nova.policies.placing.deficit import Accounts
from amp_nova.policies.placing.score import gains, known_speedups
from amp_nova.policies.placing.whole_instances import instances_of


@dataclass(frozen=True, slots=True)
class HspPolicy:
    """Big cores to the highest speedups."""

    hysteresis_ratio: float = 0.02
    """By how much a challenger's gain must exceed that of a vCPU on a big core."""
    per_vcpu: bool = False
    """Rank every vCPU by its own speedup."""
    name: str = "hsp"

    def __post_init__(self) -> None:
        at_least("hysteresis_ratio", self.hysteresis_ratio, 0.0)

    def decide(self, view: HostView) -> Decision:
        """The instances that gain most get the big cores."""
        accounts = deficit.update(view, view.memory)
        return self.by_speedup(view, known_speedups(view, accounts), accounts)

    def by_speedup(
        self, view: HostView, speedups: Mapping[VcpuKey, float | None], accounts: Accounts
    ) -> Decision:
        """The decision if these are the speedups of vCPUs."""
        shared = shared_capacity(view)
        gain = gains(speedups, accounts, self.hysteresis_ratio)
        if self.per_vcpu:
            shares = by_rank(shared, ranked_vcpus(shared, gain))
            return deficit.by_shares(view, shared, shares, accounts)
        instances, types = instances_of(view, speedups, accounts), view.topology.core_types
        reach = {name: i.whole_speedup(types, 2.0) - 1.0 for name, i in instances.items()}

        def of_whole(vcpu: VcpuView) -> float | None:
            """Its part of what all big cores together add to the instance's speed."""
            own = gain(vcpu)
            return None if own is None else own * reach[vcpu.key[0]]

        shares = by_rank(shared, ranked_instances(shared, of_whole))
        return deficit.by_shares(view, shared, shares, accounts)
