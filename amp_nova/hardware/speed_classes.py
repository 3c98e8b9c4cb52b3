"""Speed classes: where the CPUs of one design fall apart into slower and faster ones.

Cores that are sold as equal are not: every vendor bins a few *favoured* ones that clock 4-10 %
higher (5.8 against 5.5 GHz; the two dies of an X3D part 1.095), and AMD's firmware numbers its
cores in steps of 3 % from 166 to 236, which is an order of preference and no speed at all. What is
built to be slower is further away: a low-power E-core 1.5, Zen against Zen-c 1.4, a phone's prime
core 1.17 over its twin. So a class ends where two neighbouring values are a factor of ``SPEED_GAP``
apart (single linkage over the distinct values), and in between, every core is one of its class.

No single file of sysfs decides when another one could confirm it: a firmware that reports nonsense,
a boost that is switched off on some cores, a core ranking. ``cpu_capacity`` is what the kernel made
of several sources and schedules by, so it stands alone; CPPC and cpufreq have to agree.

Weak spot: a machine most of whose cores are offline may show gaps that its complete self has not.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from amp_nova.hardware.designs import RANKING_VENDORS
from amp_nova.hardware.facts import CpuFacts
from amp_nova.model import cpulist

SPEED_GAP = 1.15
"""Ratio between neighbouring speeds from which on they are two classes; see above for why."""

INTEL_PERF_UNKNOWN = 255
"""Firmware that does not know writes 255 for every core; the kernel does not believe it either."""

Reading = Callable[[CpuFacts], int | None]


@dataclass(frozen=True, slots=True)
class Classes:
    """The CPUs of one design by speed, slowest first, what divided them and what did not agree."""

    members: tuple[tuple[CpuFacts, ...], ...]
    source: str | None = None
    disputed: str | None = None
    reversed: bool = False
    """Two sources say the opposite of each other."""


def capacity(cpu: CpuFacts) -> int | None:
    """What the kernel declares."""
    return cpu.capacity


def perf(cpu: CpuFacts) -> int | None:
    """What the firmware declares, if it is a speed or at least a ranking."""
    if cpu.vendor == "GenuineIntel" and (cpu.highest_perf or 0) >= INTEL_PERF_UNKNOWN:
        return None
    return cpu.highest_perf


def max_freq(cpu: CpuFacts) -> int | None:
    """Highest frequency, kHz."""
    return cpu.max_freq_khz


def base_freq(cpu: CpuFacts) -> int | None:
    """Guaranteed frequency, kHz."""
    return cpu.base_freq_khz


def known(cpus: Iterable[CpuFacts], reading: Reading) -> bool:
    """Whether every one of these CPUs has that reading."""
    return all(reading(c) for c in cpus)


def differs(cpus: Sequence[CpuFacts], reading: Reading) -> bool:
    """Whether every CPU has that reading and not all have the same: only then does it say anything.

    Kernels from 6.12 on give x86 CPUs a capacity too, 1024 for every one when SMT is on.
    """
    return known(cpus, reading) and len({reading(c) for c in cpus}) > 1


def ranked(cpus: Iterable[CpuFacts]) -> bool:
    """Whether highest_perf orders these CPUs by preference rather than by speed."""
    return any(c.vendor in RANKING_VENDORS for c in cpus)


def lowest(cpus: Iterable[CpuFacts], reading: Reading) -> int:
    """The smallest reading: what every one of these CPUs has at least."""
    return min(reading(c) or 0 for c in cpus)


def cuts(cpus: Sequence[CpuFacts], reading: Reading) -> list[frozenset[int]]:
    """For every clear gap in the readings, the ids of the CPUs below it; smallest set first."""
    if not known(cpus, reading):
        return []
    values = sorted({reading(c) or 0 for c in cpus})
    gaps = [low for low, high in pairwise(values) if high >= low * SPEED_GAP]
    return [frozenset(c.id for c in cpus if (reading(c) or 0) <= low) for low in gaps]


def classes(cpus: Sequence[CpuFacts], capacity_counts: bool) -> Classes:
    """Divide the CPUs of one design; ``capacity_counts`` if the machine's capacities differ."""
    if capacity_counts:
        by_capacity = cuts(cpus, capacity)
        return Classes(_divide(cpus, by_capacity), "cpu_capacity" if by_capacity else None)
    by_perf, by_freq = cuts(cpus, perf), cuts(cpus, max_freq)
    if known(cpus, perf) and known(cpus, max_freq):
        # Lakefield's max frequencies are alike (2.8 and 3.0 GHz), its base frequencies are not.
        confirmed = [c for c in by_perf if c in by_freq or c in cuts(cpus, base_freq)]
        said = by_freq if ranked(cpus) else by_freq + by_perf
        return Classes(
            _divide(cpus, confirmed),
            "ACPI CPPC highest_perf and cpufreq" if confirmed else None,
            _dispute(cpus, [c for c in said if c not in confirmed], by_freq),
            not ranked(cpus) and any(p - f and f - p for p in by_perf for f in by_freq),
        )
    if by_perf and not ranked(cpus):
        return Classes(_divide(cpus, by_perf), "ACPI CPPC highest_perf")
    return Classes(_divide(cpus, by_freq), "cpufreq" if by_freq else None)


def _divide(
    cpus: Sequence[CpuFacts], below: Iterable[frozenset[int]]
) -> tuple[tuple[CpuFacts, ...], ...]:
    members: list[tuple[CpuFacts, ...]] = []
    placed: set[int] = set()
    for cut in [*sorted(below, key=len), frozenset(c.id for c in cpus)]:
        members.append(tuple(c for c in cpus if c.id in cut - placed))
        placed |= cut
    return tuple(members)


def _dispute(
    cpus: Sequence[CpuFacts], alone: list[frozenset[int]], by_freq: list[frozenset[int]]
) -> str | None:
    if not alone:
        return None
    below = alone[0]
    says, other = "cpufreq", "ACPI CPPC highest_perf"
    if below not in by_freq:
        says, other = other, says
    above = cpulist.show(c.id for c in cpus if c.id not in below)
    return f"{says} puts pCPUs {cpulist.show(below)} below {above}, which {other} does not confirm"
