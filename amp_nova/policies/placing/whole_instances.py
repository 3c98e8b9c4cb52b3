# SPDX-License-Identifier: Apache-2.0
"""Instances as a whole: what several vCPUs gain from the fast cores there are.

A fast core speeds up one vCPU at a time. Alone on the host, an instance of n runnable vCPUs with
speedup s takes turns on the NB fast cores and runs at ``1 + (s - 1) min(1, NB / n)`` on average.
This is its application-wide speedup (saez2015, section 2.2), and its slowdown is relative to it.
"""

import math
from collections.abc import Mapping
from operator import attrgetter

from msgspec import Struct

from amp_nova.hardware.effective_speed import alone_shares, running_at_a_time, speed, speed_over
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType
from amp_nova.policies.api import HostView, Places, VcpuView
from amp_nova.policies.placing.core_shares import ACTIVE_MIN_RATIO, is_active
from amp_nova.policies.placing.deficit import Accounts
from amp_nova.policies.placing.score import mean_known

TURN_RATIO = 0.1
"""Two vCPUs of an instance take turns once their recent shares of the fast cores differ by this."""
Name = str | VcpuKey
"""The UUID of an instance, or the key of a vCPU that counts as one instance."""


class InstanceView(Struct, frozen=True):
    """vCPUs whose progress counts as one."""

    vcpus: tuple[VcpuView, ...]
    speedup: float | None
    """Mean of its vCPUs' speedups; ``None``: none of them is known."""
    running: float
    """How many of its vCPUs run at a time."""
    alone: tuple[float, ...]
    """Time of each vCPU on each core type if the instance were alone on the host.

    An untried instance counts as a single vCPU here, which gives it a stronger claim. Otherwise an
    instance with many vCPUs might never be tried, because the mean speedup is assumed for it."""
    untried: bool = False
    """Whether its speedup is unknown, but will be once it has run on other core types."""

    def speeds(self, types: tuple[CoreType, ...], speedup: float) -> list[float]:
        """Its speed on each core type over the slowest; between these, measured if possible."""
        last = len(types) - 1
        measured = [
            mean_known([v.speeds[at] for v in self.vcpus if v.speeds], None)
            for at in range(1, last)
        ]
        inner = [speed(types, at, speedup) if m is None else m for at, m in enumerate(measured, 1)]
        return [1.0, *inner, speedup][: len(types)]

    @property
    def active(self) -> list[VcpuView]:
        """The vCPUs that take part in the decision."""
        return [v for v in self.vcpus if is_active(v)]

    def in_turn(self, accounts: Accounts) -> list[VcpuView]:
        """Its active vCPUs, the one that recently had least of the fast cores first."""
        return sorted(self.active, key=lambda v: (accounts[v.key].turn_ratio, v.key))

    def whole_speedup(self, types: tuple[CoreType, ...], speedup: float) -> float:
        """Speed alone on the host over that on slow cores alone, if each vCPU gains ``speedup``."""
        return speed_over(types, self.alone, speedup) / math.fsum(self.alone)


def take_turns(
    view: HostView, places: Places, instances: Mapping[Name, InstanceView], accounts: Accounts
) -> Places:
    """The places of each instance, given to those of its vCPUs whose turn it is.

    Two vCPUs change places once the one on the faster core type recently had ``TURN_RATIO`` more of
    it. A parallel instance takes no turns.
    """
    position = view.topology.position
    now = {v.key: position(v.pcpus) for v in view.vcpus if v.key in places}
    turns, last = dict(places), len(view.topology.core_types) - 1
    for instance in instances.values():
        vcpus = [v for v in instance.vcpus if v.key in places]
        if len(vcpus) < 2 or vcpus[0].parallel or len({v.allowed for v in vcpus}) > 1:
            continue
        had = {
            v.key: accounts[v.key].turn_ratio - TURN_RATIO * (now[v.key] or 0) / last for v in vcpus
        }
        best = sorted((places[k] for k in had), key=lambda p: position(p) or 0, reverse=True)
        turns |= dict(zip(sorted(had, key=had.__getitem__), best, strict=True))
    return turns


def instances_of(
    view: HostView,
    speedups: Mapping[VcpuKey, float | None],
    accounts: Accounts,
    *,
    per_vcpu: bool = False,
) -> dict[Name, InstanceView]:
    """The instances of a host; with ``per_vcpu`` each vCPU counts as one instance."""
    by_name: dict[Name, list[VcpuView]] = {}
    for vcpu in sorted(view.vcpus, key=attrgetter("key")):
        by_name.setdefault(vcpu.key if per_vcpu else vcpu.key[0], []).append(vcpu)
    pcpus = [view.topology.pcpus_of(t.name) for t in view.topology.core_types]
    counts: dict[frozenset[int], list[int]] = {}
    made = {}
    for name, vcpus in by_name.items():
        usable = vcpus[0].allowed
        if len(vcpus) > 1:
            usable = usable.union(*{v.allowed for v in vcpus})
        if usable not in counts:
            counts[usable] = [len(usable & ids) for ids in pcpus]
        demands = [1.0 if v.demand_ratio is None else v.demand_ratio for v in vcpus]
        running = running_at_a_time([d for d in demands if d >= ACTIVE_MIN_RATIO])
        speedup = mean_known([speedups[v.key] for v in vcpus], None)
        untried = (
            speedup is None
            and sum(count > 0 for count in counts[usable]) > 1
            and not any(accounts[v.key].tried for v in vcpus)
        )
        alone = alone_shares(counts[usable], 1.0 if untried else running)
        made[name] = InstanceView(tuple(vcpus), speedup, running, alone, untried)
    return made
