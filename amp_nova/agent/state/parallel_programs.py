# SPDX-License-Identifier: Apache-2.0
"""Recognises instances that run one parallel program, whose vCPUs wait for each other.

While such an instance is divided between core types, its vCPUs on the faster one wait for those on
the slower one, which never do. vCPUs that do not depend on each other sleep as much on either type,
or not at all.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from amp_nova.policies.api import VcpuView

SURE_S = 5.0
"""An instance is recognised once its vCPUs have waited for each other for this long."""
KEPT_S = 600.0
"""It is then placed as a whole, which shows no more, for this long; the program may end."""
BUSY_RATIO = 0.95
"""A vCPU that wants to run for less than this share of the time waits for something."""
_MOST_RATIO = 0.9
"""A vCPU counts if it was on one core type for this part of its time."""


class Evidence(Struct, frozen=True):
    """For how long vCPUs have waited for each other, and how long that still counts."""

    waited_s: float = 0.0
    counts_s: float = 0.0


def advance(
    before: Mapping[str, Evidence], vcpus: Iterable[VcpuView], elapsed_s: float
) -> dict[str, Evidence]:
    """The evidence after an interval, by instance of several vCPUs whose flavor does not say."""
    after, instances = {}, defaultdict[str, list[VcpuView]](list)
    for vcpu in vcpus:
        if vcpu.parallel is None:
            instances[vcpu.key[0]].append(vcpu)
    for name, of_instance in instances.items():
        if len(of_instance) < 2:
            continue
        old = before.get(name, Evidence())
        waits, counts_s = _waits(of_instance), max(0.0, old.counts_s - elapsed_s)
        if waits is not None:
            waited_s = old.waited_s + elapsed_s if waits else 0.0
            sure = waited_s >= SURE_S
            old = Evidence(0.0 if sure else waited_s)
            counts_s = KEPT_S if sure else counts_s if waits else 0.0
        after[name] = Evidence(old.waited_s, counts_s)
    return after


def recognised(vcpus: Iterable[VcpuView], evidence: Mapping[str, Evidence]) -> tuple[VcpuView, ...]:
    """The vCPUs, of which those of recognised instances are parallel."""
    sure = {name for name, of in evidence.items() if of.counts_s > 0.0}
    return tuple([structs.replace(v, parallel=True) if v.key[0] in sure else v for v in vcpus])


def _waits(vcpus: list[VcpuView]) -> bool | None:
    """Whether the vCPUs on faster types waited for those on the slowest one that they used.

    ``None``: all of them were on one type, or that is unknown.
    """
    busy: dict[int, list[bool]] = {}
    for vcpu in vcpus:
        most_s = max(vcpu.cpu_s, default=0.0)
        if vcpu.demand_ratio is not None and most_s > _MOST_RATIO * sum(vcpu.cpu_s):
            at = vcpu.cpu_s.index(most_s)
            busy.setdefault(at, []).append(vcpu.demand_ratio >= BUSY_RATIO)
    if len(busy) < 2:
        return None
    slowest = min(busy)
    return all(busy[slowest]) and not any(any(b) for at, b in busy.items() if at > slowest)
