# SPDX-License-Identifier: Apache-2.0
"""For how long enforcement would throttle a vCPU, for an agent that only observes.

A model of CFS bandwidth. A vCPU runs for the share ``u`` of an interval, sleeps for the rest, and
would be limited to ``q``. Once a period's quota is used up it is throttled until the next period,
and what it wanted to do is done later; it sleeps as often as before for what it does. Then

* if each burst of work is short compared with the quota, it is throttled for ``1 - q / u`` of the
  time, or not at all if ``u <= q``;
* if bursts are long, it is throttled within each of them even if ``u < q``: for
  ``u (1 - q) / (u + q (1 - u))`` of the time.

These are the least and the most. Both are ``1 - q`` for a vCPU that always wants to run. The time
that one waited for others counts for the most only: it would have slept as long in any case.
Neither says what becomes of work that is left when an interval ends: a burst that fills whole
intervals would have lasted ``1 / q`` times as long, and work that arrives at the same rate however
much of it waits would have been throttled for ``1 - q`` all the time, if ``u > q``.
"""

from msgspec import Struct

from amp_nova.model.observation import Usage

SATURATED_RATIO = 0.98
"""A vCPU that wants more of the time than this takes all that it gets, however fast the core is."""


class WouldLimit(Struct, frozen=True):
    """The limit that enforcement would set, in cores of one pCPU with this coefficient."""

    cores: float
    coefficient: float | None = None


def throttled_s(used: Usage, limit_cores: float, speed_ratio: float = 1.0) -> tuple[float, float]:
    """Seconds of an interval for which a limit would have throttled a vCPU: least and most.

    ``speed_ratio``: the speed of the pCPU that it ran on, over that of those it would have run on.
    """
    if used.wall_s <= 0.0 or used.demand_s <= 0.0 or limit_cores >= 1.0:
        return 0.0, 0.0
    demand_ratio, ran_ratio = used.demand_s / used.wall_s, used.run_s / used.wall_s
    if demand_ratio >= SATURATED_RATIO:
        demand_ratio = ran_ratio = 1.0
    else:
        demand_ratio = min(1.0, demand_ratio * speed_ratio)
        ran_ratio = min(1.0, ran_ratio * speed_ratio)
    if demand_ratio <= 0.0:  # less than a number can hold
        return 0.0, 0.0
    least = 1.0 - limit_cores / ran_ratio if ran_ratio > limit_cores else 0.0
    most = demand_ratio * (1.0 - limit_cores) / (demand_ratio + limit_cores * (1.0 - demand_ratio))
    return least * used.wall_s, most * used.wall_s
