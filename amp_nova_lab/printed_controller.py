# SPDX-License-Identifier: Apache-2.0
"""The published rule for bookings of instructions per second (teabe2017, solution 2), as printed.

``act = (old * sp + ri) / (2 * sp)``, and the vCPU may run if ``act < B``. ``printed``: ``old`` is 0
if the vCPU was blocked in the previous sampling period, as the paper's text says;
``printed-decay``: ``old`` decays through blocked periods, as its formula says. Neither holds a
booking: of a vCPU that retires ``R`` when it always runs, a booking of ``R / 1000`` gets ``R / 3``
(with decay ``R / 10``), and one above ``R / 2`` up to 14 % (25 %) too little.
"""

from collections.abc import Mapping

from amp_nova.control.ips_controller import DEFAULT, Controller, IpsState, IpsTerms, Work


class PrintedState(IpsState, frozen=True):
    """``old``, in instructions per second, and whether the vCPU is blocked in this period."""

    old: float = 0.0
    blocked: bool = False


def _rule(*, decays: bool) -> Controller:
    """It acts once per sampling period, whatever the work does."""

    def act(state: IpsState, terms: IpsTerms, work: Work, *_: object) -> IpsState:
        old, was_blocked = 0.0, False
        if isinstance(state, PrintedState):
            old, was_blocked = state.old, state.blocked
        act = (old * work.wall_s + work.instructions) / (2.0 * work.wall_s)
        blocked = act >= terms.ips
        old = 0.0 if was_blocked and not decays else act
        return PrintedState(0.0 if blocked else 1.0, rho=state.rho, old=old, blocked=blocked)

    return Controller(lambda *_: False, act)


CONTROLLERS: Mapping[str, Controller] = {
    "default": DEFAULT,
    "printed": _rule(decays=False),
    "printed-decay": _rule(decays=True),
}
"""By the name that a scenario gives."""
