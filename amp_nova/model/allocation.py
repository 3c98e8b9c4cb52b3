"""Changes to what is in force for a vCPU: its CPU bandwidth limit, affinity and idle class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from amp_nova.model import cpulist
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import DomainReading, VcpuKey


class Allocation(NamedTuple):
    """What is in force for one vCPU: the pCPUs it is kept on, and its limit (``None``: none).

    ``allowed``: the pCPUs that Nova and libvirt leave it; ``uncounted``: why nothing counts its
    instructions, ``None`` if they are counted; ``burst_us``: its ``cpu.max.burst``.
    """

    pcpus: frozenset[int]
    bandwidth: Bandwidth | None
    allowed: frozenset[int] = frozenset()
    uncounted: str | None = ""
    burst_us: int = 0


Allocations = Mapping[VcpuKey, Allocation]


def of_domain(seen: DomainReading) -> dict[VcpuKey, Allocation]:
    """What is in force for every vCPU of a domain."""
    resource = seen.domain.resource
    return {
        (resource, v.index): Allocation(
            v.pcpus,
            v.bandwidth,
            v.allowed,
            None if v.counts is not None else v.uncounted or "",
            seen.bursts_us.get(v.index, 0),
        )
        for v in seen.vcpus
    }


def of_host(domains: Mapping[str, Allocations]) -> dict[VcpuKey, Allocation]:
    """What is in force for every vCPU of all domains."""
    found: dict[VcpuKey, Allocation] = {}
    for domain in domains.values():
        found.update(domain)
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """One write: an affinity or, when ``pcpus`` is ``None``, a bandwidth limit."""

    pcpus: frozenset[int] | None = None
    bandwidth: Bandwidth | None = None


def described(step: Step) -> str:
    """A step in words."""
    if step.pcpus is not None:
        return f"pCPUs {cpulist.show(step.pcpus)}"
    if step.bandwidth is None:
        return "no quota"
    return f"quota {step.bandwidth.quota_us}/{step.bandwidth.period_us} us"


@dataclass(frozen=True, slots=True)
class Change:
    """The writes one vCPU needs, in the order that never grants more than is booked."""

    key: VcpuKey
    steps: tuple[Step, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SafeState:
    """What holds for a vCPU while no agent is in control.

    ``limits``: the right limit on the pCPUs of each core type, empty: the one it had before the
    agent's first change. ``pcpus``: where it is kept unless its affinity is one of those, ``None``:
    where it was before. ``leave``: it is not amp-nova's to change.
    """

    pcpus: frozenset[int] | None = None
    limits: tuple[tuple[frozenset[int], Bandwidth | None], ...] = ()
    leave: bool = False


SafeStates = Mapping[VcpuKey, SafeState]


@dataclass(frozen=True, slots=True)
class Changes:
    """All writes of one cycle. ``idle``: instances to put into the idle class or take out of it.

    ``safe``: what is to be recorded before the first of them, for every vCPU that is managed.
    """

    vcpus: tuple[Change, ...] = ()
    idle: Mapping[str, bool] = field(default_factory=dict)
    safe: SafeStates = field(default_factory=dict, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.vcpus or self.idle)


LOCKED = "locked"
"""The reason of a failure: another process kept the cycle lock."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a change could not be made: a short reason to count by, and a sentence."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of ``Changes``: failures by vCPU, and by instance for the idle class.

    A vCPU or instance that is gone by the time of the write is not a failure.
    """

    failures: Mapping[VcpuKey, Failure] = field(default_factory=dict)
    idle_failures: Mapping[str, Failure] = field(default_factory=dict)


NOTHING_DONE = Outcome()


def in_force(before: Allocations, changes: Changes, outcome: Outcome) -> Allocations:
    """What is in force once these changes were made, except those that failed."""
    if not changes.vcpus:
        return before
    now = dict(before)
    for change in changes.vcpus:
        for step in change.steps if change.key not in outcome.failures else ():
            if step.pcpus is None:
                now[change.key] = now[change.key]._replace(bandwidth=step.bandwidth)
            else:
                now[change.key] = now[change.key]._replace(pcpus=step.pcpus)
    return now
