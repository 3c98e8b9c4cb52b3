# SPDX-License-Identifier: Apache-2.0
"""``prop-sp``: big-core time in proportion to speedup and priority.

Intuition. A compromise between ``hsp`` and ``rr``: instances that gain more have more of the big
cores, and all have some.

Formula. An instance's share of big-core time is in proportion to its application-wide speedup ``1 +
(SF - 1) min(1, NB / n)`` times ``amp:weight``. Its n vCPUs divide that evenly, each up to all of
its own time. What exceeds that is divided among the others in the same proportion.

Source. saez2015 section 2.3 (Prop-SP). Deviation: an unknown speedup counts as the mean of the
known ones until the vCPU has been tried on both core types, since no model is sure of it;
``printed=2.2`` trusts an estimate from one. ``per_vcpu=true`` divides among vCPUs by their own SF;
an instance with many vCPUs then has most of the big cores.

Cost. As ``amp-fair``.

When not to use it. When slowdowns should be equal. Published: better throughput than fair shares,
but "high unfairness in some cases".
"""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView, VcpuView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.core_shares import evenly, shared_capacity
from amp_nova.policies.placing.score import known_speedups, mean_known
from amp_nova.policies.placing.whole_instances import instances_of
from amp_nova_lab.policies.as_printed import TRUST, trusted_speedups
from amp_nova_lab.policies.parameters import sections


@dataclass(frozen=True, slots=True)
class PropSpPolicy:
    """Big-core time in proportion to speedup times weight."""

    per_vcpu: bool = False
    """Divide among vCPUs, each by its own speedup."""
    printed: str = ""
    """Sections of saez2015 to follow as printed: 2.2."""
    name: str = "prop-sp"

    def __post_init__(self) -> None:
        sections(self.printed, (TRUST,))

    def decide(self, view: HostView) -> Decision:
        """The vCPUs furthest behind their share get the big cores."""
        shared, accounts = shared_capacity(view), deficit.update(view, view.memory)
        speedups = (trusted_speedups if self.printed else known_speedups)(view, accounts)
        mean, types = mean_known(speedups.values(), 1.0), view.topology.core_types
        instances = instances_of(view, speedups, accounts, per_vcpu=self.per_vcpu)
        proportion = {}
        for instance in instances.values():
            own = mean if instance.speedup is None else instance.speedup
            whole = instance.whole_speedup(types, own)
            active = instance.active
            for vcpu in active:
                proportion[vcpu.key] = whole * vcpu.weight / len(active)

        def by_proportion(vcpu: VcpuView) -> float:
            return proportion[vcpu.key]

        return deficit.by_shares(view, shared, evenly(shared, by_proportion), accounts)
