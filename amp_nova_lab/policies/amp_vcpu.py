# SPDX-License-Identifier: Apache-2.0
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

from collections.abc import Sequence
from dataclasses import dataclass

from amp_nova.policies.placing.core_shares import Group, Score, SharedCapacity, ranked_vcpus
from amp_nova_lab.policies.amp_vm import AmpVmPolicy


@dataclass(frozen=True, slots=True)
class AmpVcpuPolicy(AmpVmPolicy):
    """Fast cores by the vCPU's own efficiency score."""

    name: str = "amp-vcpu"

    def ranks(self, shared: SharedCapacity, score: Score) -> Sequence[Group]:
        """One vCPU after the other."""
        return ranked_vcpus(shared, score)
