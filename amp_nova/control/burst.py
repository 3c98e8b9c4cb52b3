"""Bursts of vCPUs that book reference cores: unused time, banked and spent later.

A bandwidth limit forgets what was not used at the end of each of its periods. So the bank is kept
here: booked time that the vCPU did not want goes in, up to ``amp:burst_s`` seconds of the booking,
and what it runs beyond its booking comes out. While there is something in it, the limit until the
next cycle is as much higher as spends it by then, and no higher than its neighbours' bookings
allow. (Bookings of instructions per second have their bank in the fast loop,
``control.ips_controller``.)
"""

from dataclasses import dataclass

from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Usage

OVERDRAFT_S = 1.0
"""The most that a vCPU may have had too much, in seconds of its booking; more is forgiven."""
LEAST_RATIO = 0.5
"""One that had too much keeps this part of its booking while it pays."""
HYSTERESIS_RATIO = 0.02
"""A limit this close to what it should be, as a part of the booking's, is left alone: a write gives
away a period's quota."""


@dataclass(frozen=True, slots=True)
class Shares:
    """A booking, and the shares of its pCPU that it needs and may use at most while it bursts."""

    refcores: float
    cores: float
    max_cores: float


def banked(
    before_ref_s: float, used: Usage, refcores: float, got_ref_s: float, burst_s: float
) -> float:
    """What is in the bank after an interval, in reference-core seconds; negative: overdrawn."""
    unused_ref_s = refcores * (used.wall_s - used.demand_s)
    over_ref_s = max(0.0, got_ref_s - refcores * used.demand_s)
    after_ref_s = before_ref_s + unused_ref_s - over_ref_s
    return max(-refcores * OVERDRAFT_S, min(refcores * burst_s, after_ref_s))


def share(
    shares: Shares, banked_ref_s: float, cycle_s: float, now: Bandwidth | None
) -> float | None:
    """The share of a pCPU until the next cycle; ``None`` where the present limit is as good."""
    need = shares.cores
    wanted = need * (1.0 + banked_ref_s / (shares.refcores * cycle_s))
    wanted = min(max(wanted, need * LEAST_RATIO), shares.max_cores)
    in_force = 1.0 if now is None else now.cores
    return None if abs(wanted - in_force) <= HYSTERESIS_RATIO * need else wanted
