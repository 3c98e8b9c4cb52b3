# SPDX-License-Identifier: Apache-2.0
"""``a-dwrr``: the same scaled CPU time for every vCPU.

Intuition. A second on a big core is worth more than one on a small core, by the hardware's
coefficient. The vCPUs that have had the least by that measure, relative to their weights, get the
big cores.

Formula. Scaled time advances by ``coefficient(core type) / amp:weight`` per second. The vCPUs with
the least scaled time get the fastest cores. With equal weights and all vCPUs busy, all have the
same share of them.

Source. saez2015 section 2.3 (A-DWRR of Li et al.). Its rounds keep sleepers from saving up time;
here scaled time advances per second of demand instead. What a workload gains from a fast core is
ignored, and an instance has as many shares as vCPUs.

Cost. Moves every interval; ``N log N``.

When not to use it. When speedups differ: like ``rr``, it slows down those workloads most that gain
most from big cores.
"""

from dataclasses import dataclass

from amp_nova.hardware.effective_speed import gain
from amp_nova.policies.api import Decision, HostView
from amp_nova.policies.placing import deficit, virtual_time


@dataclass(frozen=True, slots=True)
class ADwrrPolicy:
    """Equal scaled CPU time."""

    name: str = "a-dwrr"

    def decide(self, view: HostView) -> Decision:
        """The vCPUs with the least scaled time get the big cores; the memory is that time."""
        before = view.memory if isinstance(view.memory, dict) else {}
        types = view.topology.core_types
        rates = [gain(types, at) or 1.0 + at for at in range(len(types))]
        steps = {}
        for vcpu in view.vcpus:
            ran_s = virtual_time.at_full_demand(view, [vcpu])
            step_s = virtual_time.scaled(ran_s, rates)
            steps[vcpu.key] = None if step_s is None else step_s / vcpu.weight
        scaled_s = virtual_time.advance(view, before, steps, dict.fromkeys(steps, 1))
        places = deficit.by_claim(view, {key: -at_s for key, at_s in scaled_s.items()})
        return Decision(places, scaled_s, early=True)
