"""What is known of each vCPU's use of a fast core, as scores to rank by.

Unknown stays unknown (``None``): who has no score competes with nobody, see ``shares.by_rank``.
"""

import math
from collections.abc import Mapping

from amp_nova.hardware.relative_speed import gain, speed
from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.core_shares import Score
from amp_nova.policies.placing.deficit import Tallies, Tally

HINT_S = 60.0
"""So long, in seconds of running, a flavor's hint is believed untried."""
_DIGITS = 4
"""Scores that differ by less are alike."""


def _incumbency(tally: Tally) -> float:
    """How far up the core types its present share is, 0 to 1."""
    top = len(tally.due) - 1
    return sum(share * at for at, share in enumerate(tally.due)) / top if top else 0.0


def measured(view: HostView, so_far: Tallies, vcpu: VcpuView) -> float | None:
    """Its speedup, of one that was tried on a fast core as well as on a slow one; else its hint.

    A model may be wrong about a workload that never ran on both, and who is ranked low by mistake
    would never get there: as long as it was not tried, nothing is known. So may a hint: it counts
    for its first ``HINT_S`` of running, then it is tried; where nothing can be measured, it counts
    again.
    """
    tally = so_far[vcpu.key]
    if tally.tried or view.topology.only_type(vcpu.allowed) is not None:
        return vcpu.hint if vcpu.speedup is None else vcpu.speedup
    return vcpu.hint if math.fsum(tally.ran_s) < HINT_S else None


def ipc_on_slowest(view: HostView, vcpu: VcpuView) -> float | None:
    """Instructions per cycle, as on the slowest core type where its speedup tells.

    A workload that waits for memory has a lower IPC on a fast core than on a slow one. Without
    this, two similar vCPUs would change places for ever, each looking better where it is slow.
    """
    types = view.topology.core_types
    if vcpu.ipc is None or vcpu.speedup is None or len(vcpu.cpu_s) != len(types):
        return vcpu.ipc
    at = max(range(len(types)), key=lambda i: vcpu.cpu_s[i])
    faster = gain(types, at)
    return None if faster is None else vcpu.ipc * faster / speed(types, at, vcpu.speedup)


def efficiency(view: HostView, so_far: Tallies, hysteresis_ratio: float) -> Score:
    """IPC x utilization (kwon2011 section 3.1), times ``amp:weight``.

    Utilization is the share of time a vCPU wants to run: what it is kept waiting is the host's
    doing, not its own. Who has the fast cores has the benefit of the doubt, by
    ``hysteresis_ratio``. Of one whose instructions were not counted its flavor's hint counts.
    """
    rates = _ipcs(view)

    def score(vcpu: VcpuView) -> float | None:
        ipc, demand = rates.get(vcpu.key), vcpu.demand_ratio
        if ipc is None or (demand is None and vcpu.hint is None):
            return None
        doubt = 1.0 + hysteresis_ratio * _incumbency(so_far[vcpu.key])
        wanted = 1.0 if demand is None else demand
        return round(ipc * wanted * vcpu.weight * doubt, _DIGITS)

    return score


def _ipcs(view: HostView) -> Mapping[VcpuKey, float]:
    """IPC of those that are known or hinted at.

    Half of what the hardware gives stands for the mean of the IPC that was counted, other hints in
    proportion.
    """
    found = {v.key: ipc for v in view.vcpus if (ipc := ipc_on_slowest(view, v)) is not None}
    hints = {v.key: v.hint for v in view.vcpus if v.hint is not None and v.key not in found}
    if not hints:
        return found
    usual = math.fsum(found.values()) / len(found) if found else 1.0
    types = view.topology.core_types
    most = gain(types, len(types) - 1) or max(hints.values())
    return found | {key: usual * hint / ((1.0 + most) / 2.0) for key, hint in hints.items()}


def gains(view: HostView, so_far: Tallies, hysteresis_ratio: float) -> Score:
    """What having the fastest type adds, times ``amp:weight``; of those who were tried.

    While a vCPU sleeps a fast core adds nothing.
    """

    def score(vcpu: VcpuView) -> float | None:
        speedup = measured(view, so_far, vcpu)
        if speedup is None:
            return None
        doubt = 1.0 + hysteresis_ratio * _incumbency(so_far[vcpu.key])
        wanted = so_far[vcpu.key].wanted_ratio
        usual = 1.0 if wanted is None else wanted
        return round((speedup - 1.0) * usual * vcpu.weight * doubt, _DIGITS)

    return score
