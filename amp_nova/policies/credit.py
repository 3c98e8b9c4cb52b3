"""``credit``: share the pCPUs evenly and ignore that they differ.

Idea. What a hypervisor does that does not know about asymmetric cores: run queues are kept evenly
long, and whether a vCPU lands on a fast or a slow core is chance. It is the baseline that every
other policy is measured against.

How. Once an interval all vCPUs are dealt onto the pCPUs in a new random order, each to the least
loaded pCPU that it may use. Load is what vCPUs wanted to run in the last interval, and what is
booked. Chance comes from the seed and the number of the interval, so a run can be repeated.

Formula. With N vCPUs that always run on NF fast of N cores, the expected share of its time that
each spends on a fast core is NF / N; with more vCPUs than cores, all get the same CPU time in the
long run.

Source. The Xen credit scheduler, kwon2011 section 3.1, with its results in section 4.2 (figures 7,
8 and 10): it "may assign fast cores completely to low efficiency VMs, or may even make fast cores
idle, when slow cores are busy". With the number of fast cores it scales no better than ``pinned``
(section 4.5, figure 12). Simplified: Xen accounts credits every 30 ms and steals work at once; here
a vCPU keeps its pCPU for an interval, so a pCPU whose vCPUs sleep idles until the next one.

Cost. One pass over vCPUs times pCPUs; most vCPUs change their pCPU every interval, also across
last-level caches.

When not to use it: on any asymmetric host that you care about. It is there to be compared with.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView


@dataclass(frozen=True, slots=True)
class CreditPolicy:
    """Deal vCPUs onto evenly loaded pCPUs by chance."""

    name: str = "credit"

    def decide(self, view: HostView) -> Mapping[VcpuKey, frozenset[int]]:
        """One pCPU for every vCPU."""
        chance = random.Random(f"{view.seed} {view.interval}")
        pcpus = sorted(view.free_cores)
        chance.shuffle(pcpus)
        vcpus = list(view.vcpus)
        chance.shuffle(vcpus)
        load_cores = {p: 1.0 - view.free_cores[p] for p in pcpus}
        placed = {}
        for vcpu in vcpus:
            usable = [p for p in pcpus if p in vcpu.allowed]
            if not usable:
                continue
            # Ties go to the first of the shuffled pCPUs: that is the chance.
            pcpu = min(usable, key=lambda p: round(load_cores[p], 6))
            load_cores[pcpu] += 1.0 if vcpu.demand_ratio is None else vcpu.demand_ratio
            placed[vcpu.key] = frozenset({pcpu})
        return placed
