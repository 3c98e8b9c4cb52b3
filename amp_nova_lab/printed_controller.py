# SPDX-License-Identifier: Apache-2.0
"""The published rule for bookings of instructions per second (teabe2017, solution 2), as printed.

``act = (old * sp + ri) / (2 * sp)``, and the vCPU may run if ``act < B``. ``printed``: ``old`` is 0
if the vCPU was blocked in the previous sampling period, as the paper's text says;
``printed-decay``: ``old`` decays through blocked periods, as its formula says. Neither holds a
booking: of a vCPU that retires ``R`` when it always runs, a booking of ``R / 1000`` gets ``R / 3``
(with decay ``R / 10``), and one above ``R / 2`` up to 14 % (25 %) too little.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import structs

from amp_nova.agent.loop import Loop
from amp_nova.model.bandwidth import PERIOD_MAX_US, PERIOD_MIN_US, QUOTA_MIN_US, Bandwidth
from amp_nova.model.observation import VcpuKey

SP_S = 0.1
"""The paper's sampling period."""
RUNS = Bandwidth(PERIOD_MIN_US, PERIOD_MIN_US)
BLOCKED = Bandwidth(QUOTA_MIN_US, PERIOD_MAX_US)


class Printed(NamedTuple):
    """``old``, in instructions per second, and whether the vCPU is blocked in this period."""

    old: float = 0.0
    blocked: bool = False

    def after(self, ips: float, booked_ips: float, *, decays: bool) -> "Printed":
        """The state after a sampling period with these instructions per second."""
        act = (self.old + ips) / 2.0
        return Printed(0.0 if self.blocked and not decays else act, act >= booked_ips)


class PrintedLoop(Loop):
    """The agent's loop, but with the published rule between cycles, and ticks of ``SP_S``."""

    decays = False
    _rules: Mapping[VcpuKey, Printed] = {}

    def tick(self) -> None:
        """Block vCPUs for the next sampling period, or let them run."""
        state, before = self._state, self._state.limits.samples
        samples = self._sensor.sample(before)
        rules, limits = dict[VcpuKey, Printed](), {}
        for key, sample in samples.items():
            was = before.get(key, sample)
            ips = (sample.instructions - was.instructions) / SP_S
            booked = state.entitlements[key].booking.ips or 0.0
            rules[key] = self._rules.get(key, Printed()).after(ips, booked, decays=self.decays)
            limits[key] = BLOCKED if rules[key].blocked else RUNS
        self._rules = rules
        self._state = structs.replace(state, limits=structs.replace(state.limits, samples=samples))
        self._throttle(limits)


class PrintedDecayLoop(PrintedLoop):
    """The same, but ``old`` decays through blocked periods."""

    decays = True


LOOPS: Mapping[str, type[Loop]] = {
    "default": Loop,
    "printed": PrintedLoop,
    "printed-decay": PrintedDecayLoop,
}
"""By the name that a scenario gives its controller."""
