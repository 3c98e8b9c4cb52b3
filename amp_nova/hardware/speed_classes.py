# SPDX-License-Identifier: Apache-2.0
"""Speed classes: where the CPUs of one design divide into slower and faster ones.

Nominally equal cores differ. Every vendor bins a few *favoured* cores that clock 4-10 % higher
(5.8 against 5.5 GHz; the two dies of an X3D part differ by 1.095), and AMD's firmware numbers
equal cores from 166 to 236 in steps of 3 %, as an order of preference. Cores that are slower by
design differ more: a low-power E-core by 1.5, Zen-c from Zen by 1.4, the prime core of a phone from
its twin by 1.17. Two neighbouring values that are a factor of ``SPEED_GAP`` apart therefore
separate two classes (single linkage over the distinct values).

A single sysfs file can be wrong: nonsensical firmware, boost disabled on some cores, a ranking. So
CPPC and cpufreq must agree where both exist. ``cpu_capacity`` needs no confirmation: the kernel
derives it from several sources and schedules by it.

Weakness: with most of its cores offline, a machine may show gaps that it otherwise does not have.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from amp_nova.hardware.designs import RANKING_VENDORS, CpuFacts
from amp_nova.model import cpulist

SPEED_GAP = 1.15
"""Ratio of neighbouring speeds at which a new class begins; the reasons are above."""
INTEL_PERF_UNKNOWN = 255
"""Firmware without data reports this for every core; the kernel ignores it too."""


@dataclass(frozen=True, slots=True)
class Source:
    """One source of relative speeds. Its values compare CPUs; their unit does not matter."""

    name: str
    read: Callable[[CpuFacts], int | None]

    def known(self, cpus: Iterable[CpuFacts]) -> bool:
        """Whether there is a value for every one of these CPUs."""
        return all(map(self.read, cpus))

    def differs(self, cpus: Sequence[CpuFacts]) -> bool:
        """Whether the values are known and not all equal.

        Equal values carry no information: since 6.12 the kernel reports a capacity of 1024 for
        every CPU of an x86 machine with SMT.
        """
        return self.known(cpus) and len(set(map(self.read, cpus))) > 1

    def lowest(self, cpus: Iterable[CpuFacts]) -> int:
        """The smallest value: what each of these CPUs reaches."""
        return min(self.read(c) or 0 for c in cpus)

    def gaps(self, cpus: Sequence[CpuFacts]) -> list[frozenset[int]]:
        """The ids of the CPUs below each gap in the values, smallest set first."""
        if not self.known(cpus):
            return []
        values = sorted({self.read(c) or 0 for c in cpus})
        ends = [low for low, high in pairwise(values) if high >= low * SPEED_GAP]
        return [frozenset(c.id for c in cpus if (self.read(c) or 0) <= low) for low in ends]


def _perf(cpu: CpuFacts) -> int | None:
    value = cpu.speeds.highest_perf
    intel = cpu.model.vendor == "GenuineIntel"
    return None if intel and (value or 0) >= INTEL_PERF_UNKNOWN else value


CAPACITY = Source("cpu_capacity", lambda cpu: cpu.speeds.capacity)
PERF = Source("ACPI CPPC highest_perf", _perf)
MAX_FREQ = Source("cpufreq", lambda cpu: cpu.speeds.max_freq_khz)
BASE_FREQ = Source("cpufreq base_frequency", lambda cpu: cpu.speeds.base_freq_khz)


@dataclass(frozen=True, slots=True)
class Classes:
    """The CPUs of one design by speed, slowest first."""

    members: tuple[tuple[CpuFacts, ...], ...]
    source: str | None = None
    """What divides them, ``None`` if nothing does."""
    disputed: str | None = None
    """A division that one source makes and another does not confirm."""
    reversed: bool = False
    """Whether two sources contradict each other."""


def ranked(cpus: Iterable[CpuFacts]) -> bool:
    """Whether highest_perf orders these CPUs by preference rather than by speed."""
    return any(c.model.vendor in RANKING_VENDORS for c in cpus)


def classes(cpus: Sequence[CpuFacts], use_capacity: bool) -> Classes:
    """Divide the CPUs of one design; ``use_capacity`` if capacities differ on this machine."""
    if use_capacity:
        by_capacity = CAPACITY.gaps(cpus)
        return Classes(_divide(cpus, by_capacity), CAPACITY.name if by_capacity else None)
    by_perf, by_freq = PERF.gaps(cpus), MAX_FREQ.gaps(cpus)
    if PERF.known(cpus) and MAX_FREQ.known(cpus):
        # Lakefield: maximum frequencies are close (2.8 and 3.0 GHz), base frequencies are not.
        confirmed = [c for c in by_perf if c in by_freq or c in BASE_FREQ.gaps(cpus)]
        claimed = by_freq if ranked(cpus) else by_freq + by_perf
        return Classes(
            _divide(cpus, confirmed),
            f"{PERF.name} and {MAX_FREQ.name}" if confirmed else None,
            _dispute(cpus, [c for c in claimed if c not in confirmed], by_freq),
            not ranked(cpus) and any(p - f and f - p for p in by_perf for f in by_freq),
        )
    if by_perf and not ranked(cpus):
        return Classes(_divide(cpus, by_perf), PERF.name)
    return Classes(_divide(cpus, by_freq), MAX_FREQ.name if by_freq else None)


def incomplete(cpus: Sequence[CpuFacts]) -> tuple[str, bool] | None:
    """A source that knows some of these CPUs and not the others, in words; whether it divides them.

    A CPU is online before its files are there, and some never get them, or a 0.
    """
    found = []
    for source in (CAPACITY, PERF, MAX_FREQ):
        known = [c for c in cpus if source.read(c)]
        if 0 < len(known) < len(cpus):
            divides = bool(source.gaps(known))
            what = "tells CPUs apart" if divides else "is known of some CPUs"
            silent = cpulist.show(c.id for c in cpus if not source.read(c))
            found.append((f"{source.name} {what}, but says nothing of pCPUs {silent}", divides))
    return max(found, key=lambda each: each[1], default=None)


def uneven(cpus: Sequence[CpuFacts]) -> str | None:
    """That speeds within one class differ by ``SPEED_GAP`` or more, in words.

    In several small steps, or by base frequencies that nothing confirms (Intel Speed Select).
    Maximum frequencies of AMD's come from the order of preference on some kernels.
    """
    for source in (BASE_FREQ, CAPACITY) if ranked(cpus) else (BASE_FREQ, MAX_FREQ, CAPACITY, PERF):
        values = {c.id: value for c in cpus if (value := source.read(c))}
        low, high = min(values.values(), default=1), max(values.values(), default=1)
        if low * SPEED_GAP <= high:
            slow = cpulist.show(i for i, value in values.items() if value == low)
            clock = source in (BASE_FREQ, MAX_FREQ)
            least, most = (f"{v / 1e6:.2f} GHz" if clock else f"{v}" for v in (low, high))
            ranges = f"ranges from {least} (pCPUs {slow}) to {most}"
            return f"{source.name} within one core type {ranges}"
    return None


def slowest(cpus: Sequence[CpuFacts]) -> Sequence[CpuFacts]:
    """Those of one core type that are slower than others, by the first source that says so."""
    for source in (CAPACITY, MAX_FREQ, BASE_FREQ, PERF):
        if source.differs(cpus):
            return [c for c in cpus if source.read(c) == source.lowest(cpus)]
    return cpus


def _divide(
    cpus: Sequence[CpuFacts], below: Iterable[frozenset[int]]
) -> tuple[tuple[CpuFacts, ...], ...]:
    members: list[tuple[CpuFacts, ...]] = []
    placed: frozenset[int] = frozenset()
    for ids in [*sorted(below, key=len), frozenset(c.id for c in cpus)]:
        members.append(tuple(c for c in cpus if c.id in ids - placed))
        placed |= ids
    return tuple(members)


def _dispute(
    cpus: Sequence[CpuFacts], unconfirmed: list[frozenset[int]], by_freq: list[frozenset[int]]
) -> str | None:
    if not unconfirmed:
        return None
    below = unconfirmed[0]
    source, other = (MAX_FREQ, PERF) if below in by_freq else (PERF, MAX_FREQ)
    above = cpulist.show(c.id for c in cpus if c.id not in below)
    return (
        f"{source.name} puts pCPUs {cpulist.show(below)} below {above}, which {other.name} does"
        " not confirm"
    )
