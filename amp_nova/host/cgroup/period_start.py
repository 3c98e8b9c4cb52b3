"""Writes limits at the start of a bandwidth period, when the refill gives nothing away.

At every write the kernel refills the group's bandwidth. In the middle of a period, a group that has
used up its quota would get a second one: 3 % of what it may use in 3 s. Right after a period
begins, the refill returns only what the group has used since.
"""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from amp_nova.host.cgroup.groups import VcpuGroup

K = TypeVar("K")
POLL_S = 0.0002
WAIT_MAX_S = 0.11
"""A little more than the longest usual period; longer periods are not waited for."""


def at_period_start(
    groups: Mapping[K, VcpuGroup],
    act: Callable[[K], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call ``act`` for every group when its next period begins.

    A group without demand begins no period, and a refill gives it nothing: ``act`` is called for it
    after the length of one period.
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
    """Number of periods so far, and the length of one in s; 0 s if the group is gone."""
    try:
        limit = group.bandwidth()
        return group.periods(), 0.0 if limit is None else limit.period_us / 1e6
    except OSError:  # ``act`` finds that out
        return -1, 0.0
