"""``none``: touch nothing.

Idea. The host's own scheduler decides; every vCPU may use every pCPU that Nova left it. It is the
default on a host with one core type, the control in every comparison, and what the agent falls back
to when another policy misbehaves.

Cost. Nothing. When not to use it: on an asymmetric host whose best-effort instances should share
the fast cores by a rule rather than by chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView


@dataclass(frozen=True, slots=True)
class NonePolicy:
    """Leave every vCPU alone."""

    name: str = "none"

    def decide(self, view: HostView) -> Mapping[VcpuKey, frozenset[int]]:
        """No vCPU is given a place."""
        return {}
