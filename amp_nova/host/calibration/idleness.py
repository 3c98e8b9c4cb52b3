"""How busy every pCPU is at the moment, so that a measurement is made on idle ones."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from amp_nova.exceptions import CalibrationInvalid
from amp_nova.model.topology import Topology

MAX_BUSY_RATIO = 0.05
MAX_STEAL_RATIO = 0.02
"""Time that a hypervisor below gave to somebody else."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one pCPU did over a moment, as shares of it."""

    busy_ratio: float
    steal_ratio: float


def loads(
    root: str = "/", over_s: float = 1.0, sleep: Callable[[float], None] = time.sleep
) -> dict[int, Load]:
    """Load of every online pCPU over the next moment."""
    before = _ticks(root)
    sleep(over_s)
    after = _ticks(root)
    found = {}
    for pcpu, now in after.items():
        then = before.get(pcpu)
        if then is None:  # came online meanwhile
            continue
        user, nice, system, idle, iowait, irq, softirq, steal = (
            max(0, n - t) for n, t in zip(now, then, strict=True)
        )
        busy = user + nice + system + irq + softirq
        total = busy + idle + iowait + steal
        # A tickless idle pCPU may not have moved any counter.
        found[pcpu] = Load(busy / total, steal / total) if total else Load(0.0, 0.0)
    return found


def _ticks(root: str) -> dict[int, list[int]]:
    path = Path(root, "proc/stat")
    found = {}
    try:
        for line in path.read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                values = [int(f) for f in fields[:8]]
                found[int(name[3:])] = values + [0] * (8 - len(values))
    except (OSError, ValueError) as exc:
        raise CalibrationInvalid(
            f"{path} does not say how busy the pCPUs are ({exc}); pass --force to measure anyway"
        ) from exc
    return found


def idlest(topology: Topology, core_type: str, load_of: dict[int, Load]) -> int:
    """The pCPU of a core type whose whole core is idlest; of equals the last.

    The first pCPU of a machine is where interrupts and the kernel's own work land.
    """
    siblings = {p.id: p.siblings or (p.id,) for p in topology.pcpus}

    def busy(pcpu: int) -> float:
        return _worst(siblings[pcpu], load_of).busy_ratio

    return min(sorted(topology.pcpus_of(core_type), reverse=True), key=busy)


def why_busy(topology: Topology, chosen: dict[str, int], load_of: dict[int, Load]) -> str | None:
    """Why the chosen pCPUs are no place to measure on, ``None`` when they are idle."""
    siblings = {p.id: p.siblings or (p.id,) for p in topology.pcpus}
    for core_type, pcpu in chosen.items():
        load = _worst(siblings[pcpu], load_of)
        if load.busy_ratio > MAX_BUSY_RATIO:
            return (
                f"pCPU {pcpu}, the idlest of core type '{core_type}', is {load.busy_ratio:.0%} busy"
                f" where {MAX_BUSY_RATIO:.0%} is allowed"
            )
        if load.steal_ratio > MAX_STEAL_RATIO:
            return (
                f"a hypervisor takes {load.steal_ratio:.0%} of pCPU {pcpu} of core type"
                f" '{core_type}' where {MAX_STEAL_RATIO:.0%} is allowed"
            )
    return None


def _worst(pcpus: Iterable[int], load_of: dict[int, Load]) -> Load:
    found = [load_of.get(p, Load(0.0, 0.0)) for p in pcpus]
    return Load(max(x.busy_ratio for x in found), max(x.steal_ratio for x in found))
