# SPDX-License-Identifier: Apache-2.0
"""Current load of the pCPUs: a calibration measures on the idlest ones."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from amp_nova.hardware import speed_classes
from amp_nova.hardware.designs import CpuFacts
from amp_nova.kernel import files
from amp_nova.model.topology import Topology


def loads(
    root: str = "/", over_s: float = 1.0, sleep: Callable[[float], None] = time.sleep
) -> dict[int, float]:
    """Busy share of every online pCPU over the next ``over_s`` seconds."""
    before = ticks(root)
    sleep(over_s)
    return load_between(before, ticks(root))


def load_between(
    before: Mapping[int, Sequence[int]], after: Mapping[int, Sequence[int]]
) -> dict[int, float]:
    """Busy share of every pCPU between two readings of ``ticks``."""
    ratios = {}
    for pcpu, now in after.items():
        then = before.get(pcpu)
        if then is None:  # came online in between
            continue
        user, nice, system, idle, iowait, irq, softirq, steal = (
            max(0, n - t) for n, t in zip(now, then, strict=True)
        )
        busy = user + nice + system + irq + softirq
        total = busy + idle + iowait + steal
        # the counters of a tickless idle pCPU may not move at all
        ratios[pcpu] = busy / total if total else 0.0
    return ratios


def ticks(root: str) -> dict[int, list[int]]:
    """The first eight counters of every online pCPU in ``/proc/stat`` (proc(5)).

    Empty if the file cannot be read.
    """
    counters = {}
    try:
        for line in files.text(Path(root, "proc/stat")).splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                values = [int(f) for f in fields[:8]]
                counters[int(name[3:])] = values + [0] * (8 - len(values))
    except (OSError, ValueError):
        return {}
    return counters


def idlest(
    topology: Topology, core_type: str, load_of: Mapping[int, float], facts: Sequence[CpuFacts]
) -> int:
    """The pCPU of the slowest ones of a core type whose core is the least busy.

    Vendors bin a few cores that clock higher. Of equals, the highest-numbered one: interrupts and
    kernel work gather on the first pCPUs. ``facts``: those of the machine.
    """
    siblings = {p.id: p.siblings or (p.id,) for p in topology.pcpus}
    of_type = topology.pcpus_of(core_type)
    slow = {c.id for c in speed_classes.slowest([c for c in facts if c.id in of_type])}
    pcpus = sorted(slow or of_type, reverse=True)
    return min(pcpus, key=lambda pcpu: max(load_of.get(p, 0.0) for p in siblings[pcpu]))
