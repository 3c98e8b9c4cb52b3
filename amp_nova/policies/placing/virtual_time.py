# SPDX-License-Identifier: Apache-2.0
"""Virtual time: for policies that equalise how far every vCPU, or every instance, has come.

Each vCPU or instance has a virtual time, which advances while it runs, at a rate that the policy
defines. The one with the least virtual time goes first. As in CFS, sleep earns nothing: virtual
time advances per second of demand.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.core_shares import wanted_to_run
from amp_nova.policies.placing.places import vcpus_per_pcpu

Name = TypeVar("Name", bound=Hashable)
DISTANCE_MAX_S = 60.0
"""Virtual times stay this close to those at which vCPUs change places, which caps deficits."""


def at_full_demand(view: HostView, vcpus: Sequence[VcpuView]) -> list[float] | None:
    """Mean CPU seconds of vCPUs by core type, as if they always wanted to run; ``None``: unknown.

    A vCPU that wants half the time and gets it has come as far as one that wants and gets all of
    it: compared with running alone, neither was slowed down. vCPUs that sleep are not counted. A
    parallel program has come as far as the vCPU that waits least for the others.
    """
    types = len(view.topology.core_types)
    counted = [v for v in vcpus if len(v.cpu_s) == types and wanted_to_run(v.demand_ratio)]
    if counted and counted[0].parallel:
        counted = [max(counted, key=lambda v: 1.0 if v.demand_ratio is None else v.demand_ratio)]
    ran_s = [math.fsum([v.cpu_s[at] for v in counted]) for at in range(types)]
    # Never below what they ran: the counters are not read at the same instant.
    demand = math.fsum([1.0 if v.demand_ratio is None else v.demand_ratio for v in counted])
    demand_s = max(demand * view.elapsed_s, math.fsum(ran_s))
    if not counted:
        return None
    stretch = view.elapsed_s / demand_s if demand_s > 0.0 else 1.0
    return [s * stretch for s in ran_s]


def scaled(ran_s: Sequence[float] | None, rates: Sequence[float]) -> float | None:
    """CPU seconds by core type as seconds of virtual time; ``None``: unknown."""
    if ran_s is None:
        return None
    return math.fsum([s * r for s, r in zip(ran_s, rates, strict=True)])


def advance(
    view: HostView,
    before: Mapping[Name, float],
    steps: Mapping[Name, float | None],
    vcpus: Mapping[Name, int],
) -> dict[Name, float]:
    """Virtual times after an interval, in seconds; an unknown step counts as the mean step.

    ``vcpus``: how many vCPUs have each virtual time. A newcomer starts at the greatest virtual time
    at which vCPUs change places, so that it is owed nothing. (saez2015 section 3, note 4, takes the
    greatest of all. The two differ when some vCPUs stay on small cores for good, because they gain
    too little to be moved: their virtual times run ahead without limit.)
    """
    steps_s = [s for name, s in steps.items() if s is not None and name in before]
    mean = math.fsum(steps_s) / len(steps_s) if steps_s else 0.0
    now = {
        name: before[name] + (mean if step is None else step)
        for name, step in steps.items()
        if name in before
    }
    times_s = sorted(at_s for name, at_s in now.items() for _ in range(vcpus[name]))
    low, high = _borders(view, times_s)
    now |= {name: high for name in steps if name not in now}
    # Relative to the border, so that the numbers stay small.
    return {
        name: min(max(at_s - high, low - high - DISTANCE_MAX_S), DISTANCE_MAX_S)
        for name, at_s in now.items()
    }


def _borders(view: HostView, times_s: Sequence[float]) -> tuple[float, float]:
    """Virtual times at which vCPUs enter the fastest core type, and leave the slowest."""
    if not times_s:
        return 0.0, 0.0
    taken = vcpus_per_pcpu(view, len(times_s))
    on = [sum(taken[p] for p in view.topology.pcpus_of(t.name)) for t in view.topology.core_types]
    last = len(times_s) - 1
    return times_s[min(last, on[-1])], times_s[min(last, len(times_s) - on[0])]
