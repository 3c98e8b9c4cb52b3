# SPDX-License-Identifier: Apache-2.0
"""What a vCPU was owed and got, which accounting adds up and limits make up for."""

from msgspec import Struct

from amp_nova.model.bandwidth import TICK_S
from amp_nova.model.observation import Usage

IPS_UNKNOWN = 1e10
"""Instructions per CPU second assumed where no nominal Ips are known: more than any core retires,
so that the first limit gives less than is booked rather than more."""


class Delivery(Struct, frozen=True):
    """What a booked vCPU was owed and got since it was first seen.

    Capacity is in the unit of the booking times seconds: ``owed``; ``worth``, its CPU time by the
    calibration of its core type; ``got``, what that was worth in fact; ``limited``, what it was
    owed and did not get although neighbours left it all that its limit allowed. While bookings are
    only observed, these are what enforcement would have delivered, and the others what it would
    have cost any vCPU: ``beyond_ref_s``, what it used beyond its booking; the seconds for which it
    would have been throttled, at least and at most.
    """

    wall_s: float = 0.0
    demand_s: float = 0.0
    owed: float = 0.0
    worth: float = 0.0
    got: float = 0.0
    limited: float = 0.0
    beyond_ref_s: float = 0.0
    throttled_least_s: float = 0.0
    throttled_most_s: float = 0.0

    def since(self, before: "Delivery") -> "Delivery":
        """The difference between two sums."""
        return Delivery(
            self.wall_s - before.wall_s,
            self.demand_s - before.demand_s,
            self.owed - before.owed,
            self.worth - before.worth,
            self.got - before.got,
            self.limited - before.limited,
        )


NOTHING_DELIVERED = Delivery()
USED_LEAST_RATIO = 0.9
OVERRUN_S = 2.0 * TICK_S
"""A vCPU that used this part of what its limit left it, or missed no more than it may have to make
up for after overruns, was held back by its limit or by a slow pCPU, not by its neighbours."""


def owed(used: Usage, booked_per_s: float, delivered: float) -> float:
    """Capacity owed for an interval, in the unit of the booking times seconds.

    A vCPU is owed its booking for the time it wanted to run. A vCPU that used its share early in
    the interval and then slept got all it wanted: what was ``delivered`` to it, up to the booking,
    was owed.
    """
    return max(booked_per_s * used.demand_s, min(delivered, booked_per_s * used.wall_s))


def delivery(
    used: Usage, limit_cores: float, booked_per_s: float, worth: float, got: float
) -> Delivery:
    """What a vCPU was owed and got in an interval with this limit."""
    owes, limited = owed(used, booked_per_s, got), 0.0
    allowed_s = limit_cores * used.demand_s
    if limit_cores < 1.0 and used.run_s >= min(USED_LEAST_RATIO * allowed_s, allowed_s - OVERRUN_S):
        limited = max(0.0, owes - got)
    return Delivery(used.wall_s, used.demand_s, owes, worth, got, limited)
