"""Current load of the pCPUs: a calibration measures on idle pCPUs only."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_nova.exceptions import CalibrationInvalid
from amp_nova.model.topology import Topology

MAX_BUSY_RATIO = 0.05
MAX_STEAL_RATIO = 0.02


@dataclass(frozen=True, slots=True)
class Load:
    """Use of one pCPU, or of one core, as shares of the sampled time."""

    busy_ratio: float
    steal_ratio: float
    """Time in which the hypervisor below this machine ran other guests."""


def loads(
    root: str = "/", over_s: float = 1.0, sleep: Callable[[float], None] = time.sleep
) -> dict[int, Load]:
    """Load of every online pCPU over the next ``over_s`` seconds.

    Raises ``CalibrationInvalid`` if ``/proc/stat`` cannot be read.
    """
    before = ticks(root)
    sleep(over_s)
    return load_between(before, ticks(root))


def load_between(
    before: Mapping[int, Sequence[int]], after: Mapping[int, Sequence[int]]
) -> dict[int, Load]:
    """Load of every pCPU between two readings of ``ticks``."""
    load_of = {}
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
        load_of[pcpu] = Load(busy / total, steal / total) if total else Load(0.0, 0.0)
    return load_of


def ticks(root: str) -> dict[int, list[int]]:
    """The first eight counters of every online pCPU in ``/proc/stat`` (proc(5)).

    Raises ``CalibrationInvalid`` if the file cannot be read.
    """
    path = Path(root, "proc/stat")
    counters = {}
    try:
        for line in path.read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                values = [int(f) for f in fields[:8]]
                counters[int(name[3:])] = values + [0] * (8 - len(values))
    except (OSError, ValueError) as exc:
        raise CalibrationInvalid(
            f"{path} does not say how busy the pCPUs are ({exc}); pass --force to measure anyway"
        ) from exc
    return counters


def idlest(topology: Topology, core_type: str, load_of: Mapping[int, Load]) -> int:
    """The pCPU of a core type whose core is the least busy.

    Of equals, the highest-numbered one: interrupts and kernel work gather on the first pCPUs.
    """
    pcpus = sorted(topology.pcpus_of(core_type), reverse=True)
    return min(pcpus, key=lambda pcpu: _core_load(topology, pcpu, load_of).busy_ratio)


def why_busy(
    topology: Topology, chosen: Mapping[str, int], load_of: Mapping[int, Load]
) -> str | None:
    """Why a chosen pCPU is too busy to measure on; ``None`` if all are idle enough."""
    for core_type, pcpu in chosen.items():
        load = _core_load(topology, pcpu, load_of)
        if load.busy_ratio > MAX_BUSY_RATIO:
            return (
                f"pCPU {pcpu}, the idlest of core type '{core_type}', is {load.busy_ratio:.0%}"
                f" busy, and at most {MAX_BUSY_RATIO:.0%} is allowed"
            )
        if load.steal_ratio > MAX_STEAL_RATIO:
            return (
                f"a hypervisor takes {load.steal_ratio:.0%} of pCPU {pcpu} of core type"
                f" '{core_type}', and at most {MAX_STEAL_RATIO:.0%} is allowed"
            )
    return None


def _core_load(topology: Topology, pcpu: int, load_of: Mapping[int, Load]) -> Load:
    """The load of the busiest hardware thread of a pCPU's core."""
    siblings = next(p.siblings for p in topology.pcpus if p.id == pcpu) or (pcpu,)
    threads = [load_of.get(p, Load(0.0, 0.0)) for p in siblings]
    return Load(max(x.busy_ratio for x in threads), max(x.steal_ratio for x in threads))
