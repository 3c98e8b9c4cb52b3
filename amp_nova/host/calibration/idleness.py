# SPDX-License-Identifier: Apache-2.0
"""Current load of the pCPUs: a calibration measures on the idlest ones."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from amp_nova.hardware import speed_classes
from amp_nova.hardware.designs import CpuFacts
from amp_nova.kernel import cpus
from amp_nova.model.topology import Topology


def loads(
    root: str = "/", over_s: float = 1.0, sleep: Callable[[float], None] = time.sleep
) -> dict[int, float]:
    """Busy share of every online pCPU over the next ``over_s`` seconds."""
    since = sample(root)
    sleep(over_s)
    return load_between(since, sample(root))


def sample(root: str) -> tuple[int, Mapping[int, int]]:
    """The time now, and for how long every pCPU has been idle so far, both in ns."""
    return time.monotonic_ns(), cpus.idle_ns(Path(root))


def load_between(
    before: tuple[int, Mapping[int, int]], after: tuple[int, Mapping[int, int]]
) -> dict[int, float]:
    """Busy share of every pCPU that was online at both of two samples."""
    (then_ns, earlier), (now_ns, later) = before, after
    both, wall_ns = earlier.keys() & later.keys(), max(1, now_ns - then_ns)
    idle_ratios = {pcpu: (later[pcpu] - earlier[pcpu]) / wall_ns for pcpu in both}
    return {pcpu: min(1.0, max(0.0, 1.0 - idle)) for pcpu, idle in idle_ratios.items()}


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
