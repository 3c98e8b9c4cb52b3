# SPDX-License-Identifier: Apache-2.0
"""``pinned``: tie every vCPU to one pCPU and never move it.

Intuition. This is the lower bound: neither the hypervisor nor the guest knows about asymmetric
cores, and no randomness evens anything out. A vCPU on a slow core stays slow, a guest whose threads
wait for each other runs at the pace of its slowest vCPU, and a fast core idles while its vCPU
sleeps.

Method. In the order of the host's instances, vCPU i goes to pCPU i, starting over if there are more
vCPUs than pCPUs. If that pCPU is taken or not allowed, the next one is used. A vCPU whose core type
is known stays on that type. A vCPU that is already pinned stays on its pCPU unless bookings leave
no time on that pCPU.

Formula. The speed of a workload with speedup s is s on a fast core and 1 on a slow one, for good.
A guest with barriers runs at the minimum over its vCPUs.

Source. kwon2011 section 2.3 (figure 6: "the hypervisor fixes 12 virtual CPUs to respective physical
cores") and section 4.4 (figures 12 and 13).

Cost. None after the first decision.

When not to use it. When instances should share the fast cores; it exists for comparison.
"""

from dataclasses import dataclass

from amp_nova.policies.api import HostView, Places, VcpuView

TIME_MIN_CORES = 0.05
"""A pCPU to which bookings leave less than this is not used."""


def has_time(view: HostView, pcpu: int) -> bool:
    """Whether bookings leave a pCPU enough time to put a vCPU on it."""
    return view.free_cores.get(pcpu, 0.0) >= TIME_MIN_CORES


@dataclass(frozen=True, slots=True)
class PinnedPolicy:
    """A fixed mapping of vCPUs to pCPUs."""

    name: str = "pinned"

    def decide(self, view: HostView) -> Places:
        """One pCPU for every vCPU that has none yet."""
        pcpus = sorted(p.id for p in view.topology.pcpus)
        taken = dict.fromkeys(pcpus, 0)
        unpinned = []
        for position, vcpu in enumerate(view.vcpus):
            (pcpu,) = vcpu.pcpus if len(vcpu.pcpus) == 1 else (-1,)
            if pcpu in vcpu.allowed and has_time(view, pcpu):
                taken[pcpu] = taken.get(pcpu, 0) + 1
            elif usable := _usable(vcpu, view):
                unpinned.append((len(usable), position, vcpu.key, usable))
        places = {}
        # The vCPUs with the fewest alternatives choose first.
        for _, position, key, usable in sorted(unpinned):
            start = position % len(pcpus)
            pcpu = min(usable, key=lambda p: (taken[p], (pcpus.index(p) - start) % len(pcpus)))
            taken[pcpu] += 1
            places[key] = frozenset({pcpu})
        return places


def _usable(vcpu: VcpuView, view: HostView) -> list[int]:
    """The pCPUs a vCPU may be pinned to, preferring its core type and pCPUs with time left."""
    allowed = [p for p in sorted(vcpu.allowed) if view.topology.type_of(p) is not None]
    now = None if vcpu.last_pcpu is None else view.topology.type_of(vcpu.last_pcpu)
    same_type = [p for p in allowed if now is not None and view.topology.type_of(p) is now]
    for pcpus in (same_type, allowed):
        if with_time := [p for p in pcpus if has_time(view, p)]:
            return with_time
    return same_type or allowed
