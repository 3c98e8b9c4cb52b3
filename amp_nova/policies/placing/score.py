# SPDX-License-Identifier: Apache-2.0
"""Scores: how well each vCPU uses a fast core, to rank vCPUs by.

An unknown score stays unknown (``None``). A vCPU without a score competes with no other; see
``core_shares.by_rank``.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

from amp_nova.hardware.effective_speed import gain
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.core_shares import Score
from amp_nova.policies.placing.deficit import Accounts, DeficitAccount

HINT_S = 60.0
"""CPU time for which a flavor's hint is trusted before the vCPU is tried."""
DIGITS = 4
"""Scores are rounded to this many digits; smaller differences are ignored."""
Default = TypeVar("Default", float, None)


def mean_known(values: Iterable[float | None], default: Default) -> float | Default:
    """The mean of the values that are known, ``default`` if none is."""
    present = [v for v in values if v is not None]
    return math.fsum(present) / len(present) if present else default


def assumed_speedup(types: tuple[CoreType, ...], speedups: Mapping[VcpuKey, float | None]) -> float:
    """What a vCPU with an unknown speedup is assumed to gain: the mean of the known ones.

    At least half of what the hardware gains, or nobody would be tried beside vCPUs that gain
    nothing. Who gains less is overestimated only until it has been tried.
    """
    hardware = gain(types, len(types) - 1) or 1.0
    return max((1.0 + hardware) / 2.0, mean_known(speedups.values(), hardware))


def known_speedups(view: HostView, accounts: Accounts) -> dict[VcpuKey, float | None]:
    """``known_speedup`` of every vCPU."""
    return {v.key: known_speedup(view, accounts, v) for v in view.vcpus}


def known_speedup(view: HostView, accounts: Accounts, vcpu: VcpuView) -> float | None:
    """The speedup of a vCPU that has been tried on a fast and a slow core; before that, its hint.

    A model may misjudge a vCPU that never ran on both core types, and a vCPU that is ranked too low
    by mistake would never reach a fast core. Its speedup therefore counts as unknown until it has
    been tried. A hint may be wrong as well: it counts for the first ``HINT_S`` of running, after
    which the vCPU is tried, and again afterwards if nothing could be measured.
    """
    account = accounts[vcpu.key]
    if account.tried or view.topology.only_type(vcpu.allowed) is not None:
        return vcpu.hint if vcpu.speedup is None else vcpu.speedup
    return vcpu.hint if math.fsum(account.ran_s) < HINT_S else None


def in_favour(account: DeficitAccount, hysteresis_ratio: float) -> float:
    """The factor by which a vCPU's current share of fast cores favours it; 1 if it has none."""
    top = len(account.due_ratios) - 1
    height = sum([s * at for at, s in enumerate(account.due_ratios)]) / top if top else 0.0
    return 1.0 + hysteresis_ratio * height


def gains(
    speedups: Mapping[VcpuKey, float | None], accounts: Accounts, hysteresis_ratio: float
) -> Score:
    """What the fastest core type adds to a vCPU's speed, (speedup - 1) x demand x ``amp:weight``.

    Demand counts because a fast core adds nothing while its vCPU sleeps. A vCPU with an unknown
    speedup has no score.
    """

    def score(vcpu: VcpuView) -> float | None:
        speedup = speedups[vcpu.key]
        if speedup is None:
            return None
        account = accounts[vcpu.key]
        favour = in_favour(account, hysteresis_ratio)
        demand_ratio = 1.0 if account.demand_ratio is None else account.demand_ratio
        return round((speedup - 1.0) * demand_ratio * vcpu.weight * favour, DIGITS)

    return score
