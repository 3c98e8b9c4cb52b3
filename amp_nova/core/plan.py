"""What shall hold for every vCPU, and the changes that lead there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from amp_nova.core.capacity import Bandwidth
from amp_nova.core.observation import VcpuKey, VcpuReading
from amp_nova.core.topology import Topology
from amp_nova.exceptions import InvalidPlan


@dataclass(frozen=True, slots=True)
class Grant:
    """What one vCPU shall have: pCPUs and, if ``limits``, a bandwidth limit (``None``: none).

    A grant that does not ``limit`` leaves the bandwidth to whoever set it; a ``loose`` one is
    content with fewer of its pCPUs, so that a policy may choose among them. Of a ``governed`` one
    ``bandwidth`` is the limit to begin with: from then on the fast loop sets it.
    """

    key: VcpuKey
    pcpus: frozenset[int]
    bandwidth: Bandwidth | None = None
    limits: bool = False
    why: str = ""
    loose: bool = False
    governed: bool = False

    def met_by(self, pcpus: frozenset[int]) -> bool:
        """Whether a vCPU that is kept on these pCPUs has what it shall have."""
        return pcpus == self.pcpus or (self.loose and bool(pcpus) and pcpus <= self.pcpus)


@dataclass(frozen=True, slots=True)
class Step:
    """One write: an affinity or, when ``pcpus`` is ``None``, a bandwidth limit."""

    pcpus: frozenset[int] | None = None
    bandwidth: Bandwidth | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """The writes one vCPU needs, in the order that never gives more than is booked."""

    key: VcpuKey
    steps: tuple[Step, ...]
    why: str = ""


class Confined(Protocol):
    """A vCPU that may use some pCPUs only."""

    @property
    def allowed(self) -> frozenset[int]:
        """The pCPUs it may use."""
        ...


def check(grants: Iterable[Grant], view: Mapping[VcpuKey, Confined], topology: Topology) -> None:
    """Refuse a plan that names vCPUs or pCPUs that are not there, or leaves a vCPU none to run on.

    Raises ``InvalidPlan``. What a policy returned is checked before anything is done.
    """
    seen = set()
    for grant in grants:
        if grant.key in seen:
            raise InvalidPlan(f"vCPU {grant.key} is granted twice")
        seen.add(grant.key)
        if (vcpu := view.get(grant.key)) is None:
            raise InvalidPlan(f"vCPU {grant.key} is not there to be placed")
        if not grant.pcpus:
            raise InvalidPlan(f"vCPU {grant.key} is left no pCPU to run on")
        if extra := grant.pcpus - vcpu.allowed:
            raise InvalidPlan(f"vCPU {grant.key} may not use pCPU {min(extra)}")
        if any(topology.type_of(p) is None for p in grant.pcpus):
            raise InvalidPlan(f"vCPU {grant.key} is sent to a pCPU that is offline")


def change(reading: VcpuReading, grant: Grant) -> Change | None:
    """What it takes to get from what holds to what shall hold; ``None`` when nothing.

    A limit is lowered before the vCPU moves to a faster core and raised after it left for a slower
    one. An equal limit is never written again: the write would refill the bandwidth and forgive the
    debt. That of a governed grant is written where it begins to hold: in another place, or for a
    vCPU without a limit.
    """
    steps = []
    if not grant.met_by(reading.pcpus):
        steps.append(Step(pcpus=grant.pcpus))
    begins = bool(steps) or reading.bandwidth is None
    if grant.limits and grant.bandwidth != reading.bandwidth and (begins or not grant.governed):
        lowered = grant.bandwidth is not None and (
            reading.bandwidth is None or grant.bandwidth.cores <= reading.bandwidth.cores
        )
        steps.insert(0 if lowered else len(steps), Step(bandwidth=grant.bandwidth))
    return Change(grant.key, tuple(steps), grant.why) if steps else None


def diff(current: Mapping[VcpuKey, VcpuReading], wanted: Iterable[Grant]) -> tuple[Change, ...]:
    """Changes from what holds to what shall hold; acting twice changes nothing."""
    changes = (change(current[g.key], g) for g in wanted if g.key in current)
    return tuple(c for c in changes if c is not None)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a change could not be carried out: a word to count by, and a sentence."""

    reason: str
    message: str


def after(reading: VcpuReading, step: Step) -> VcpuReading:
    """A vCPU's reading once a step has been taken."""
    if step.pcpus is None:
        return replace(reading, bandwidth=step.bandwidth)
    return replace(reading, pcpus=step.pcpus)
