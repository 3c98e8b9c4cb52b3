"""``pinned``: tie every vCPU to one pCPU, and never move it.

Idea. The lower bound: neither the hypervisor nor the guest knows about asymmetric cores, and no
chance evens anything out. Who is tied to a slow core stays slow, a guest whose threads wait for
each other runs at the pace of its slowest vCPU, and a fast core whose vCPU sleeps idles.

How. vCPU i goes to pCPU i, in the order of the host's instances, starting over when there are more
vCPUs than pCPUs; where that pCPU is taken or not allowed, the next one is taken. A vCPU that is
known to run on some core type stays on that type. A vCPU that is tied already stays where it is,
unless bookings leave that pCPU no time.

Formula. Progress is s on a fast core and 1 on a slow one, for ever; a guest with barriers has the
minimum over its vCPUs.

Source. kwon2011 section 2.3 (figure 6: "the hypervisor fixes 12 virtual CPUs to respective physical
cores") and section 4.5 (figures 12 and 13).

Cost. Nothing after the first decision.

When not to use it: when instances should share the fast cores. It is there to be compared with.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.assignment import has_time


@dataclass(frozen=True, slots=True)
class PinnedPolicy:
    """A fixed mapping of vCPUs to pCPUs."""

    name: str = "pinned"

    def decide(self, view: HostView) -> Mapping[VcpuKey, frozenset[int]]:
        """One pCPU for every vCPU that has none yet."""
        pcpus = sorted(p.id for p in view.topology.pcpus)
        taken = dict.fromkeys(pcpus, 0)
        loose = []
        for position, vcpu in enumerate(view.vcpus):
            (pcpu,) = vcpu.pcpus if len(vcpu.pcpus) == 1 else (-1,)
            if pcpu in vcpu.allowed and has_time(view, pcpu):
                taken[pcpu] = taken.get(pcpu, 0) + 1
            elif pool := _pool(vcpu, view):
                loose.append((len(pool), position, vcpu.key, pool))
        placed = {}
        # Those with the least choice choose first.
        for _, position, key, pool in sorted(loose):
            start = position % len(pcpus)
            pcpu = min(pool, key=lambda p: (taken[p], (pcpus.index(p) - start) % len(pcpus)))
            taken[pcpu] += 1
            placed[key] = frozenset({pcpu})
        return placed


def _pool(vcpu: VcpuView, view: HostView) -> list[int]:
    """The pCPUs that a vCPU may be tied to: those of the core type it is on, if that is known."""
    allowed = [p for p in sorted(vcpu.allowed) if view.topology.type_of(p) is not None]
    now = None if vcpu.last_pcpu is None else view.topology.type_of(vcpu.last_pcpu)
    same = [p for p in allowed if now is not None and view.topology.type_of(p) is now]
    for pool in (same, allowed):
        if found := [p for p in pool if has_time(view, p)]:
            return found
    return same or allowed
