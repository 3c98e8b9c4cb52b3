"""Clocks: for policies that even out how far everybody has come.

Each vCPU has a clock that its own running advances, faster or slower as the policy defines it;
whoever's clock is behind goes first. As in CFS, sleep earns nothing: a clock counts per second of
demand.
"""

import math
from collections.abc import Mapping, Sequence

from amp_nova.core.observation import VcpuKey
from amp_nova.policies.policy import HostView, VcpuView
from amp_nova.policies.shares import is_active

SPREAD_MAX_S = 60.0
"""No clock is further behind the first than this, so that no debt lasts for ever."""


def wanted_all(view: HostView, vcpu: VcpuView) -> Sequence[float] | None:
    """CPU seconds by core type, scaled to a vCPU that always wants to run; ``None``: not known.

    A vCPU that wants half of the time and gets it has come as far as one that wants all and gets
    all: against running alone neither was slowed down by sleeping.
    """
    if len(vcpu.cpu_s) != len(view.topology.core_types) or not is_active(vcpu):
        return None
    wanted = 1.0 if vcpu.demand_ratio is None else vcpu.demand_ratio
    # Never above what it ran: counters are read one after the other.
    wanted_s = max(wanted * view.elapsed_s, math.fsum(vcpu.cpu_s))
    stretch = view.elapsed_s / wanted_s if wanted_s > 0.0 else 1.0
    return [s * stretch for s in vcpu.cpu_s]


def advance(
    before: Mapping[VcpuKey, float], steps: Mapping[VcpuKey, float | None]
) -> dict[VcpuKey, float]:
    """Let clocks go on; one whose step is not known keeps pace with the mean.

    A newcomer starts at the clock that is furthest (saez2015 section 3, note 4): he is owed
    nothing.
    """
    known = [s for key, s in steps.items() if s is not None and key in before]
    usual = math.fsum(known) / len(known) if known else 0.0
    now = {
        key: before[key] + (usual if step is None else step)
        for key, step in steps.items()
        if key in before
    }
    first = max(now.values(), default=0.0)
    now |= {key: first for key in steps if key not in now}
    # Counted from the first, so that numbers stay small.
    return {key: max(clock - first, -SPREAD_MAX_S) for key, clock in now.items()}
