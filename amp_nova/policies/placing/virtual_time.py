"""Clocks: for policies that even out how far everybody has come.

Each vCPU has a clock that its own running advances, faster or slower as the policy defines it;
whoever's clock is behind goes first. As in CFS, sleep earns nothing: a clock counts per second of
demand.
"""

import math
from collections.abc import Mapping, Sequence

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.assignment import seats
from amp_nova.policies.placing.core_shares import wanted_to_run

APART_MAX_S = 60.0
"""No clock is further than this from where vCPUs change places: no debt lasts for ever."""


def wanted_all(view: HostView, vcpu: VcpuView) -> Sequence[float] | None:
    """CPU seconds by core type, scaled to a vCPU that always wants to run; ``None``: not known.

    A vCPU that wants half of the time and gets it has come as far as one that wants all and gets
    all: against running alone neither was slowed down by sleeping.
    """
    if len(vcpu.cpu_s) != len(view.topology.core_types) or not wanted_to_run(vcpu):
        return None
    wanted = 1.0 if vcpu.demand_ratio is None else vcpu.demand_ratio
    # Never above what it ran: counters are read one after the other.
    wanted_s = max(wanted * view.elapsed_s, math.fsum(vcpu.cpu_s))
    stretch = view.elapsed_s / wanted_s if wanted_s > 0.0 else 1.0
    return [s * stretch for s in vcpu.cpu_s]


def advance(
    view: HostView, before: Mapping[VcpuKey, float], steps: Mapping[VcpuKey, float | None]
) -> dict[VcpuKey, float]:
    """Let clocks go on; one whose step is not known keeps pace with the mean.

    A newcomer starts where vCPUs change places, at the greatest such clock: he is owed nothing.
    (saez2015 section 3, note 4, has the greatest clock of all, which is the same as long as nobody
    is on small cores for good: the clocks of those who gain too little to be moved run away.)
    """
    known = [s for key, s in steps.items() if s is not None and key in before]
    usual = math.fsum(known) / len(known) if known else 0.0
    now = {
        key: before[key] + (usual if step is None else step)
        for key, step in steps.items()
        if key in before
    }
    low, high = _borders(view, sorted(now.values()))
    now |= {key: high for key in steps if key not in now}
    # Counted from the border, so that numbers stay small.
    return {
        key: min(max(clock - high, low - high - APART_MAX_S), APART_MAX_S)
        for key, clock in now.items()
    }


def _borders(view: HostView, clocks_s: Sequence[float]) -> tuple[float, float]:
    """The clocks at which vCPUs change places: for the fastest core type and for the slowest."""
    if not clocks_s:
        return 0.0, 0.0
    taken = seats(view, len(clocks_s))
    on = [sum(taken[p] for p in view.topology.pcpus_of(t.name)) for t in view.topology.core_types]
    last = len(clocks_s) - 1
    return clocks_s[min(last, on[-1])], clocks_s[min(last, len(clocks_s) - on[0])]
