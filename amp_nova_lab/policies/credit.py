# SPDX-License-Identifier: Apache-2.0
"""``credit``: share the pCPUs evenly and ignore that they differ.

Intuition. This is what a hypervisor does that knows nothing of asymmetric cores: it keeps run
queues equally long, and chance decides whether a vCPU lands on a fast or a slow core. It is the
baseline that every other policy is measured against.

Method. Every interval all vCPUs are dealt onto the pCPUs in a new random order, each to the least
loaded pCPU that it may use. Load is the vCPUs' demand in the last interval plus what is booked. The
seed and the interval number determine the random order, so a run can be repeated.

Formula. With N vCPUs that always run on N cores, NF of them fast, the expected share of its time
that each vCPU spends on a fast core is NF / N. With more vCPUs than cores, all get the same CPU
time in the long run.

Source. The Xen credit scheduler, kwon2011 section 3.1, with results in section 4.2 (figures 7, 8
and 10): it "may assign fast cores completely to low efficiency VMs, or may even make fast cores
idle, when slow cores are busy". With more fast cores it scales no better than ``pinned`` (section
4.4, figure 12). Simplified: Xen accounts credits every 30 ms and steals work at once. Here a vCPU
keeps its pCPU for an interval, so a pCPU whose vCPUs sleep idles until the next one.

Cost. One pass over vCPUs times pCPUs. Most vCPUs change their pCPU every interval, often across
last-level caches.

When not to use it. On any asymmetric host in production; it exists for comparison.
"""

import heapq
import random
from dataclasses import dataclass

from amp_nova.policies.api import HostView, Places


@dataclass(frozen=True, slots=True)
class CreditPolicy:
    """Deal vCPUs onto evenly loaded pCPUs by chance."""

    name: str = "credit"

    def decide(self, view: HostView) -> Places:
        """One pCPU for every vCPU."""
        chance = random.Random(f"{view.seed} {view.interval}")
        pcpus = sorted(view.free_cores)
        chance.shuffle(pcpus)
        vcpus = list(view.vcpus)
        chance.shuffle(vcpus)
        # Ties go to the first of the shuffled pCPUs, which makes the choice random.
        loads = [(round(1.0 - view.free_cores[p], 6), at) for at, p in enumerate(pcpus)]
        heapq.heapify(loads)
        places = {}
        for vcpu in vcpus:
            passed = []
            while loads and pcpus[loads[0][1]] not in vcpu.allowed:
                passed.append(heapq.heappop(loads))
            if loads:
                load_cores, at = loads[0]
                load_cores += 1.0 if vcpu.demand_ratio is None else vcpu.demand_ratio
                heapq.heapreplace(loads, (round(load_cores, 6), at))
                places[vcpu.key] = frozenset({pcpus[at]})
            for load in passed:
                heapq.heappush(loads, load)
        return places
