# SPDX-License-Identifier: Apache-2.0
"""Deficit accounts: turn long-run shares of core types into pCPUs, interval by interval.

For an interval a vCPU is on one core type only. The time that it should have had on a type and did
not get is its deficit there, measured in its own running time. The largest deficits, including what
the next interval adds, are served first. Over many intervals every vCPU therefore gets its shares,
off by about one interval at most, whatever the shares are. kwon2011 section 3.3 does the same with
credits every 30 ms; an agent works with intervals of seconds.
"""

from collections.abc import Mapping
from operator import add
from types import MappingProxyType

from msgspec import Struct, structs

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import Decision, HostView, Places, VcpuView
from amp_nova.policies.placing.assignment import assign
from amp_nova.policies.placing.core_shares import SharedCapacity, Shares, shared_capacity

DEFICIT_MAX_S = 60.0
"""Deficits are capped: a share that was out of reach for longer than this is not made up."""
TRIAL_S = 20.0
"""CPU time on each of two core types after which a vCPU counts as tried on both."""
DEMAND_WINDOW_S = 30.0
"""Time constant of a vCPU's average demand."""
TURN_WINDOW_S = 60.0
"""Time constant of a vCPU's time on faster core types, by which an instance's vCPUs take turns."""
_RATE_MIN = 0.05


class DeficitAccount(Struct, frozen=True):
    """What a vCPU got so far, and what it is owed. Sequences are by core type, slowest first."""

    ran_s: tuple[float, ...]
    """CPU seconds so far."""
    owed_s: tuple[float, ...]
    """CPU seconds owed; negative: ahead of its share."""
    due_ratios: tuple[float, ...]
    """Shares of its running time that the last decision aimed at."""
    sampled: bool = False
    """Whether its speedup was ever measured on both core types."""
    demand_ratio: float | None = None
    """Demand over wall time, averaged over about ``DEMAND_WINDOW_S``; ``None``: unknown."""
    turn_ratio: float = 0.0
    """Recent share of its running time on the fastest core type; types in between count in part."""

    @property
    def tried(self) -> bool:
        """Whether its gain from the fastest core type is as well known as it can be.

        The speedup was measured, or the vCPU ran on two types for long without a measurement.
        """
        return self.sampled or (
            self.ran_s[-1] > TRIAL_S and any(s > TRIAL_S for s in self.ran_s[:-1])
        )


Accounts = Mapping[VcpuKey, DeficitAccount]


def update(view: HostView, before: object) -> dict[VcpuKey, DeficitAccount]:
    """The accounts of the view's vCPUs, with the last interval entered.

    ``before``: the accounts that the last decision returned; anything else starts new ones.
    """
    earlier = before if isinstance(before, dict) else {}
    zero = (0.0,) * len(view.topology.core_types)
    accounts = {}
    for vcpu in view.vcpus:
        account = earlier.get(vcpu.key)
        if account is None or len(account.ran_s) != len(zero):
            account = DeficitAccount(zero, zero, zero)
        accounts[vcpu.key] = _with_interval(account, vcpu, view.elapsed_s)
    return accounts


def _with_interval(account: DeficitAccount, vcpu: VcpuView, elapsed_s: float) -> DeficitAccount:
    demand = account.demand_ratio if vcpu.demand_ratio is None else vcpu.demand_ratio
    if account.demand_ratio is not None and demand is not None:
        demand = _average(account.demand_ratio, demand, elapsed_s / DEMAND_WINDOW_S)
    sampled = account.sampled or vcpu.sampled
    due_ratios, owed_s, cpu_s = account.due_ratios, account.owed_s, vcpu.cpu_s
    if len(cpu_s) != len(account.ran_s):  # where it ran is unknown
        return structs.replace(account, sampled=sampled, demand_ratio=demand)
    ran_s = sum(cpu_s)
    if any(due_ratios):
        owed_s = tuple(
            [
                min(DEFICIT_MAX_S, max(-DEFICIT_MAX_S, owed + due * ran_s - used))
                for owed, due, used in zip(owed_s, due_ratios, cpu_s, strict=True)
            ]
        )
    turn_ratio = sum([s * at for at, s in enumerate(cpu_s)])
    turn_ratio /= ran_s * max(1, len(cpu_s) - 1) or 1.0
    return DeficitAccount(
        tuple(map(add, account.ran_s, cpu_s)),
        owed_s,
        due_ratios,
        sampled,
        demand,
        _average(account.turn_ratio, turn_ratio, elapsed_s / TURN_WINDOW_S),
    )


def _average(before: float, now: float, windows: float) -> float:
    """An exponential average after ``windows`` time constants at the value ``now``."""
    return before + min(1.0, windows) * (now - before)


def by_shares(
    view: HostView, shared: SharedCapacity, shares: Shares, accounts: Accounts
) -> Decision:
    """Assign every active vCPU, so that over time it gets its share of each core type.

    The decision's memory is the accounts alone.
    """
    kept, claims = {}, {}
    for vcpu in view.vcpus:
        account = accounts[vcpu.key]
        share = shares.get(vcpu.key, ())
        total = sum(share)
        due = tuple([s / total for s in share]) if total > 0.0 else (0.0,) * len(account.ran_s)
        if due != account.due_ratios:
            account = structs.replace(account, due_ratios=due)
        kept[vcpu.key] = account
        if share:
            rate = _rate(vcpu, view.elapsed_s, total)
            claims[vcpu.key] = [
                owed / rate + d * view.interval_s
                for owed, d in zip(account.owed_s, due, strict=True)
            ]
    if not view.asymmetric:
        return Decision({}, kept)
    return Decision(assign(view, shared, claims), kept, early=True)


def by_claim(
    view: HostView,
    claim: Mapping[VcpuKey, float],
    thresholds: Mapping[VcpuKey, float] = MappingProxyType({}),
) -> Places:
    """Assign the fastest cores to the strongest claims.

    For policies that keep their own accounts instead of aiming at shares.
    """
    if not view.asymmetric:
        return {}
    shared, types = shared_capacity(view), len(view.topology.core_types)
    claims = {v.key: (claim[v.key],) * types for v in shared.vcpus}
    return assign(view, shared, claims, thresholds)


def _rate(vcpu: VcpuView, elapsed_s: float, each_cores: float) -> float:
    """A vCPU's running time over wall time: debts to one that runs little are served as soon."""
    ran_s = sum(vcpu.cpu_s)
    rate = ran_s / elapsed_s if ran_s > 0.0 and elapsed_s > 0.0 else each_cores
    return min(1.0, max(_RATE_MIN, rate))
