# SPDX-License-Identifier: Apache-2.0
"""What a vCPU was owed and got, which accounting adds up and limits make up for."""

from msgspec import Struct


class Delivery(Struct, frozen=True):
    """What a vCPU that books reference cores was owed and got since it was first seen.

    Capacity is in reference-core seconds: ``owed_ref_s``; ``worth_ref_s``, its CPU time multiplied
    by its coefficient; ``lost_ref_s``, the part of that which a slow pCPU cost. While bookings are
    only observed, these are what enforcement would have delivered, and the others what it would
    have cost any vCPU: ``beyond_ref_s``, what it used beyond its booking; the seconds for
    which it would have been throttled, at least and at most.
    """

    wall_s: float = 0.0
    demand_s: float = 0.0
    owed_ref_s: float = 0.0
    worth_ref_s: float = 0.0
    lost_ref_s: float = 0.0
    beyond_ref_s: float = 0.0
    throttled_least_s: float = 0.0
    throttled_most_s: float = 0.0

    def since(self, before: "Delivery") -> "Delivery":
        """The difference between two sums."""
        return Delivery(
            self.wall_s - before.wall_s,
            self.demand_s - before.demand_s,
            self.owed_ref_s - before.owed_ref_s,
            self.worth_ref_s - before.worth_ref_s,
            self.lost_ref_s - before.lost_ref_s,
        )


NOTHING_DELIVERED = Delivery()
