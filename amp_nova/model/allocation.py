"""What shall hold for every vCPU, and the changes that lead there."""

from dataclasses import dataclass, replace

from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import VcpuKey, VcpuReading


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
