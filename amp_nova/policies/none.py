# SPDX-License-Identifier: Apache-2.0
"""``none``: change nothing.

Intuition. The host's own scheduler decides, and every vCPU may use every pCPU that Nova allows it.
This is the default on a host with one core type, the control in every comparison, and what the
agent falls back to when another policy misbehaves.

Cost. None.

When not to use it. On an asymmetric host whose best-effort instances should share the fast cores by
a rule rather than by chance.
"""

from dataclasses import dataclass

from amp_nova.policies.api import HostView, Places


@dataclass(frozen=True, slots=True)
class NonePolicy:
    """Leave every vCPU alone."""

    name: str = "none"

    def decide(self, view: HostView) -> Places:
        """No places."""
        return {}
