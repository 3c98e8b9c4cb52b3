"""Bursts of vCPUs that book reference cores: unused time, banked and spent later.

CFS bandwidth forgets unused quota at the end of each period, so the bank is kept here. Booked time
that the vCPU did not want is deposited, up to ``amp:burst_s`` seconds of the booking; what it runs
beyond its booking is withdrawn. While the bank is not empty, the limit is high enough to spend it
by the next cycle, as far as the neighbours' bookings allow. (The bank of a booking in Ips is in the
fast loop, ``control.ips_controller``.)
"""

from amp_nova.control.homes import Home
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Usage

OVERDRAFT_S = 1.0
"""The largest overdraft that a vCPU has to pay back, in seconds of its booking."""
LEAST_RATIO = 0.5
"""A vCPU keeps at least this part of its booking while it pays back."""
HYSTERESIS_RATIO = 0.02
"""A limit that is off by no more than this part of the booking's limit is not rewritten: each write
gives away a period's quota."""


def banked(
    before_ref_s: float, used: Usage, refcores: float, got_ref_s: float, burst_s: float
) -> float:
    """The bank after an interval, in reference-core seconds; negative if overdrawn."""
    unused_ref_s = refcores * (used.wall_s - used.demand_s)
    over_ref_s = max(0.0, got_ref_s - refcores * used.demand_s)
    after_ref_s = before_ref_s + unused_ref_s - over_ref_s
    return max(-refcores * OVERDRAFT_S, min(refcores * burst_s, after_ref_s))


def share(
    refcores: float, home: Home, banked_ref_s: float, cycle_s: float, now: Bandwidth | None
) -> float | None:
    """The share of a pCPU until the next cycle; ``None`` to leave the present limit as it is."""
    need = home.cores or 0.0
    wanted = need * (1.0 + banked_ref_s / (refcores * cycle_s))
    most = need if home.max_cores is None else home.max_cores
    wanted = min(max(wanted, need * LEAST_RATIO), most)
    in_force = 1.0 if now is None else now.cores
    return None if abs(wanted - in_force) <= HYSTERESIS_RATIO * need else wanted
