"""Writes a limit when it gives nothing away: at the start of a bandwidth period.

The kernel refills a group's bandwidth at every write. In the middle of a period, when the group has
used its quota up, that is a whole quota for nothing: 3 % of what a booking of 0.1 may use in 3 s.
Right after a period began, it is what ran since.
"""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from amp_nova.host.cgroup.groups import VcpuGroup

K = TypeVar("K")
POLL_S = 0.0002
WAIT_MAX_S = 0.11
"""A little more than the usual longest period. Longer ones are not waited for."""


def at_period_start(
    groups: Mapping[K, VcpuGroup],
    act: Callable[[K], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call ``act`` for every group as its next period begins.

    A group without demand has no periods, and nothing to give away: it is acted on after one
    period's time.
    """
    began, now = {}, clock()
    until = {}
    for key, group in groups.items():
        began[key], period_s = _period(group)
        until[key] = now + min(1.1 * period_s, WAIT_MAX_S)
    while began:
        for key in list(began):
            if _period(groups[key])[0] != began[key] or clock() >= until[key]:
                del began[key]
                act(key)
        if began:
            sleep(POLL_S)


def _period(group: VcpuGroup) -> tuple[int, float]:
    """How many periods began, and how long one is; 0 s for a group that has gone."""
    try:
        limit = group.bandwidth()
        return group.periods(), 0.0 if limit is None else limit.period_us / 1e6
    except OSError:  # acting on it finds that out
        return -1, 0.0
