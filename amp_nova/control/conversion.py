"""Converts a booking into CPU time by the recent speed of its pCPU.

If siblings or a low clock slow a pCPU down (``hardware.effective_speed``), its share ``refcores /
coefficient`` is worth less than the booking. So the limit follows the speed of the last cycles, and
the shortfall or excess that remains is carried over to the next cycles. Only what slow pCPUs cost
is made up for, not the time that neighbours took.
"""

from dataclasses import dataclass

from amp_nova.model.bandwidth import Bandwidth

CARRIED_MAX_S = 1.0
"""The most that is carried over, in seconds of the booking; more is forgiven."""
REPAY_S = 4.0
"""Time in which what is carried over is paid back."""
EXCESS_RATIO = 1.1
"""The highest limit, relative to the worst case that admission assumes."""
LEAST_RATIO = 0.5
"""A vCPU keeps at least this part of its booking while it pays back."""
HYSTERESIS_RATIO = 0.01
"""A limit that is off by no more than this part of the booking's limit is not rewritten: each write
gives away a period's quota."""
WEIGHT = 0.5
"""Weight of the last interval in the moving average of the speed."""


@dataclass(frozen=True, slots=True)
class Lately:
    """How fast a vCPU's pCPU was lately, and what that cost.

    ``kept_ratio``: effective speed over coefficient; ``missing_ref_s``: booked capacity that was
    not delivered for that reason, negative if too much was delivered.
    """

    kept_ratio: float = 1.0
    missing_ref_s: float = 0.0


def after(
    before: Lately, got_ref_s: float, lost_ref_s: float, short_ref_s: float, refcores: float
) -> Lately:
    """``before`` with one more interval; capacity is in reference-core seconds.

    Args:
        before: the state before the interval.
        got_ref_s: the vCPU's CPU time multiplied by its coefficient.
        lost_ref_s: the part of that which a slow pCPU cost.
        short_ref_s: owed minus delivered.
        refcores: the booking.
    """
    kept = before.kept_ratio
    if got_ref_s > 0.0:
        kept += WEIGHT * (1.0 - lost_ref_s / got_ref_s - kept)
    # What neighbours took is not made up for, but it offsets an earlier excess.
    missing = before.missing_ref_s
    missing += min(short_ref_s, max(0.0, lost_ref_s, -missing))
    most = refcores * CARRIED_MAX_S
    return Lately(kept, max(-most, min(most, missing)))


FULL_SPEED = Lately()


def share(
    refcores: float, cores: float, worst_cores: float, lately: Lately, now: Bandwidth | None
) -> float | None:
    """The share of a pCPU until the next cycle; ``None`` to leave the present limit as it is.

    ``cores`` and ``worst_cores``: the shares that the booking of ``refcores`` needs at full speed
    and in the worst case.
    """
    at_speed = cores / max(lately.kept_ratio, 0.01)
    wanted = at_speed * (1.0 + lately.missing_ref_s / (refcores * REPAY_S))
    wanted = min(max(wanted, LEAST_RATIO * cores), EXCESS_RATIO * max(worst_cores, at_speed), 1.0)
    in_force = 1.0 if now is None else now.cores
    return None if abs(wanted - in_force) <= HYSTERESIS_RATIO * cores else wanted
