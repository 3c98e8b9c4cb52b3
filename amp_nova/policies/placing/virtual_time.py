"""Virtual time: for policies that equalise how far every vCPU has come.

Each vCPU has a virtual time, which its own running advances at a rate that the policy defines. The
vCPU with the least virtual time goes first. As in CFS, sleep earns nothing: virtual time advances
per second of demand.
"""

import math
from collections.abc import Mapping, Sequence

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.assignment import vcpus_per_pcpu
from amp_nova.policies.placing.core_shares import wanted_to_run

DISTANCE_MAX_S = 60.0
"""Virtual times are kept within this of those at which vCPUs change places, which caps deficits."""


def at_full_demand(view: HostView, vcpu: VcpuView) -> Sequence[float] | None:
    """CPU seconds by core type, scaled to a vCPU that always wants to run; ``None``: unknown.

    A vCPU that wants half the time and gets it has come as far as one that wants and gets all of
    it: compared with running alone, neither was slowed down.
    """
    if len(vcpu.cpu_s) != len(view.topology.core_types) or not wanted_to_run(vcpu):
        return None
    wanted = 1.0 if vcpu.demand_ratio is None else vcpu.demand_ratio
    # Never below what it ran: the counters are not read at the same instant.
    wanted_s = max(wanted * view.elapsed_s, math.fsum(vcpu.cpu_s))
    stretch = view.elapsed_s / wanted_s if wanted_s > 0.0 else 1.0
    return [s * stretch for s in vcpu.cpu_s]


def scaled(ran_s: Sequence[float] | None, rates: Sequence[float]) -> float | None:
    """CPU seconds by core type as seconds of virtual time; ``None``: unknown."""
    if ran_s is None:
        return None
    return math.fsum(s * r for s, r in zip(ran_s, rates, strict=True))


def advance(
    view: HostView, before: Mapping[VcpuKey, float], steps: Mapping[VcpuKey, float | None]
) -> dict[VcpuKey, float]:
    """Virtual times after an interval, in seconds; an unknown step counts as the mean step.

    A newcomer starts at the greatest virtual time at which vCPUs change places, so that it is owed
    nothing. (saez2015 section 3, note 4, takes the greatest of all. The two differ when some vCPUs
    stay on small cores for good, because they gain too little to be moved: their virtual times run
    ahead without limit.)
    """
    known = [s for key, s in steps.items() if s is not None and key in before]
    mean = math.fsum(known) / len(known) if known else 0.0
    now = {
        key: before[key] + (mean if step is None else step)
        for key, step in steps.items()
        if key in before
    }
    low, high = _borders(view, sorted(now.values()))
    now |= {key: high for key in steps if key not in now}
    # Relative to the border, so that the numbers stay small.
    return {
        key: min(max(at_s - high, low - high - DISTANCE_MAX_S), DISTANCE_MAX_S)
        for key, at_s in now.items()
    }


def _borders(view: HostView, times_s: Sequence[float]) -> tuple[float, float]:
    """Virtual times at which vCPUs enter the fastest core type, and leave the slowest."""
    if not times_s:
        return 0.0, 0.0
    taken = vcpus_per_pcpu(view, len(times_s))
    on = [sum(taken[p] for p in view.topology.pcpus_of(t.name)) for t in view.topology.core_types]
    last = len(times_s) - 1
    return times_s[min(last, on[-1])], times_s[min(last, len(times_s) - on[0])]
