# SPDX-License-Identifier: Apache-2.0
"""``longest-wait``: the fast cores go to the vCPUs that have waited longest for one."""

from dataclasses import dataclass

from amp_nova.policies.api import Decision, HostView


@dataclass(frozen=True)
class LongestWaitPolicy:
    name: str = "longest-wait"

    def decide(self, view: HostView) -> Decision:
        vcpus = {v.key: v for v in view.vcpus}
        before = view.memory if isinstance(view.memory, tuple) else ()
        queue = [key for key in before if key in vcpus]  # The vCPU at the head waited longest.
        queue += sorted(vcpus.keys() - set(queue))  # Newcomers join at the end.
        types = view.topology.core_types  # Slowest first.
        rank = {p: at for at, t in enumerate(types) for p in view.topology.pcpus_of(t.name)}
        load = {p: 1.0 - view.free_cores[p] for p in rank}
        places = {}
        for key in queue:
            if usable := [p for p in rank if p in vcpus[key].allowed]:
                # The fastest of the least loaded pCPUs.
                pcpu = min(usable, key=lambda p: (round(load[p], 6), -rank[p], p))
                load[pcpu] += 1.0
                places[key] = frozenset({pcpu})
        fast = view.topology.pcpus_of(types[-1].name)
        served = {key for key, pcpus in places.items() if pcpus <= fast}
        return Decision(places, memory=tuple(sorted(queue, key=lambda key: key in served)))
