"""Where the CPU cgroups of vCPUs are, and when their bandwidth periods begin."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from amp_nova.guard.kernel import VcpuGroup

K = TypeVar("K")
POLL_S = 0.0002
WAIT_MAX_S = 0.11
"""A little more than the longest usual period; longer periods are not waited for."""


def mounts(root: Path) -> dict[str, Path]:
    """Where the ``cpu`` controller (v1) and the unified tree (key ``""``, v2) are mounted.

    The kernel separates fields by spaces and lines by line feeds, and escapes both in names, which
    may contain any other byte.
    """
    mounted: dict[str, Path] = {}
    for line in os.fsdecode((root / "proc/self/mounts").read_bytes()).split("\n"):
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        _, where, kind, options, *_ = fields
        if kind == "cgroup2":
            mounted.setdefault("", root / where.lstrip("/"))
        elif kind == "cgroup" and "cpu" in options.split(","):
            mounted.setdefault("cpu", root / where.lstrip("/"))
    return mounted


def path_of(cgroup_file: str, mounted: dict[str, Path]) -> tuple[str, int] | None:
    """Folder and version of the CPU cgroup in the text of a thread's ``/proc/.../cgroup`` file.

    ``None`` if the text names none that is mounted.
    """
    unified = None
    for line in cgroup_file.rstrip("\n").split("\n"):
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") and "cpu" in mounted:
            return str(mounted["cpu"] / path.lstrip("/")), 1
        if not controllers and "" in mounted:
            unified = str(mounted[""] / path.lstrip("/"))
    return None if unified is None else (unified, 2)


def at_period_start(
    groups: Mapping[K, VcpuGroup],
    act: Callable[[K], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call ``act`` for every group when its next period begins: to write limits.

    At every write the kernel refills the group's bandwidth. In the middle of a period, a group that
    has used up its quota would get a second one: 3 % of what it may use in 3 s. Right after a
    period begins, the refill returns only what the group has used since.

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
