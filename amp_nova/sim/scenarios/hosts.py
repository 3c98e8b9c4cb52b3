"""The host of a scenario: core types, pCPUs, hardware threads and clocks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.sim.scenarios.document import Value

PCPUS_MAX = 4096
THREADS_MAX = 8
RATE_LEAST, RATE_MOST = 1e-3, 1e3
"""Bounds of coefficients, speeds and instructions per cycle that keep counters finite."""
FACTOR_LEAST = 0.1
CLOCK_LEAST, CLOCK_MOST = 0.05, 5.0
CLOCK_HZ = 1e9
"""Calibrated clock of the reference core on a host whose clocks change."""
MEMORY_BYTES_S = 10e9
"""Rate at which a vCPU fills a cache, unless the scenario gives it."""
STEP_MIN_S = 0.001
"""Minimum length of a phase and of the work between two barriers: each costs an event."""
KERNELS = ("blind", "prefer_fast")
"""Whether the host's kernel knows which pCPUs are fast."""
HOST_KEYS = ("reference", "core_types", "reference_ips", "memory_bytes_s", "kernel")
REQUIRED = ("name", "count", "coefficient")
KEYS = (*REQUIRED, "llc", "threads_per_core", "smt_busy_factor", "clock")
"""Keys of a core type."""
_CORE_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ClockPhase(NamedTuple):
    """How long a core type runs at this ratio of its calibrated clock."""

    for_s: float
    clock_ratio: float


Clocks = Mapping[str, Sequence[ClockPhase]]
"""The clock phases of core types, by name, repeated indefinitely."""
NO_CLOCKS: Clocks = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of a host beside its topology."""

    clocks: Clocks = field(default_factory=lambda: NO_CLOCKS)
    memory_bytes_s: float = MEMORY_BYTES_S
    """Rate at which a vCPU that moved fills the cache."""
    kernel: str = "blind"
    """One of ``KERNELS``."""
    other_ratio: float = 0.0
    """Share of each pCPU that processes other than vCPUs use."""


def read(host: Mapping[str, Value], reference_ips: float | None) -> tuple[Topology, Machine]:
    """The topology of a host, and its other properties."""
    types: dict[str, CoreType] = {}
    caches: list[tuple[str, int]] = []
    clocks: dict[str, Sequence[ClockPhase]] = {}
    for value in host["core_types"].items("a list of core types"):
        keys = value.fields(KEYS, REQUIRED)
        core_type, llcs = _core_type(keys, PCPUS_MAX - len(caches), reference_ips)
        if core_type.name in types:
            raise value.wrong(f"core type '{core_type.name}' is given twice")
        types[core_type.name] = core_type
        caches += [(core_type.name, llc) for llc in llcs]
        if "clock" in keys:
            clocks[core_type.name] = _clock(keys["clock"])
    if not types:
        raise host["core_types"].wrong("host.core_types is empty: a host has a core type")
    reference = _reference(host["reference"], types) if "reference" in host else None
    rate = host["memory_bytes_s"].number(1) if "memory_bytes_s" in host else MEMORY_BYTES_S
    kernel = host["kernel"].one_of(KERNELS, "a kernel") if "kernel" in host else "blind"
    return topology(types, caches, reference), Machine(clocks, rate, kernel)


def topology(
    types: Mapping[str, CoreType], caches: Sequence[tuple[str, int]], reference: str | None
) -> Topology:
    """A host with these core types; by default the slowest is the reference.

    ``caches``: core type and last-level cache of each pCPU, those of one type side by side.
    Hardware threads of a core are neighbours in the numbering.
    """
    slowest_first = tuple(sorted(types.values(), key=lambda t: t.coefficient or 0.0))
    first = {llc: number for number, (_, llc) in reversed(list(enumerate(caches)))}
    pcpus: list[PCpu] = []
    for pcpu, (name, llc) in enumerate(caches):
        core = pcpus[-1].siblings if pcpus else ()
        if pcpu not in core:
            core = tuple(range(pcpu, pcpu + types[name].threads_per_core))
        pcpus.append(PCpu(pcpu, name, core, llc=first[llc]))
    return Topology(slowest_first, tuple(pcpus), reference or slowest_first[0].name, "scenario")


def _clock(value: Value) -> tuple[ClockPhase, ...]:
    """The phases of a core type's clock."""
    phases = []
    for phase in value.items("a list of phases, each with for_s and clock_ratio"):
        keys = phase.fields(("for_s", "clock_ratio"), ("for_s", "clock_ratio"))
        ratio = keys["clock_ratio"].number(CLOCK_LEAST, CLOCK_MOST)
        phases.append(ClockPhase(keys["for_s"].number(STEP_MIN_S), ratio))
    if not phases:
        raise value.wrong(f"{value.path} is empty: give a phase, or leave it out")
    return tuple(phases)


def _reference(value: Value, types: Mapping[str, CoreType]) -> str:
    """The reference core type: one with coefficient 1, or one of another host."""
    name = value.text()
    known = types.get(name)
    if known is None and any(t.coefficient == 1.0 for t in types.values()):
        raise value.refused(
            f"a core type of the host: {', '.join(types)}; for that of another host, no core type "
            "here may have coefficient 1"
        )
    if known is not None and known.coefficient != 1.0:
        raise value.wrong(
            f"'{name}' is the reference core type, so its coefficient is 1 by definition, "
            f"not {known.coefficient:g}"
        )
    return name


def _core_type(
    keys: Mapping[str, Value], pcpus_left: int, reference_ips: float | None
) -> tuple[CoreType, Sequence[int]]:
    """A core type and the last-level cache of each of its cores."""
    name = keys["name"].text()
    if not _CORE_TYPE.fullmatch(name):
        raise keys["name"].refused("letters, digits, '-', '_' and '.', at most 64")
    count = keys["count"].whole(1, PCPUS_MAX)
    if count > pcpus_left:
        raise keys["count"].wrong(f"the host has more than {PCPUS_MAX} pCPUs: reduce the counts")
    coefficient = keys["coefficient"].number(RATE_LEAST, RATE_MOST)
    llcs = [0] * count
    if "llc" in keys:
        llcs = [v.whole(0, 1 << 31) for v in keys["llc"].items("a list with one id for each core")]
        if len(llcs) != count:
            raise keys["llc"].wrong(f"{keys['llc'].path} has {len(llcs)} ids for {count} cores")
    threads, factor = _smt(keys, count)
    ips = None if reference_ips is None else reference_ips * coefficient
    found = CoreType(name, coefficient, "scenario", threads, ips, smt_busy_factor=factor)
    if "clock" in keys:
        found = replace(found, clock_hz=CLOCK_HZ * coefficient, clock_calibrated=True)
    return found, llcs


def _smt(keys: Mapping[str, Value], count: int) -> tuple[int, float | None]:
    """Hardware threads per core, and what a busy sibling leaves of a thread's speed."""
    threads = 1
    if "threads_per_core" in keys:
        threads = keys["threads_per_core"].whole(1, THREADS_MAX)
        if count % threads:
            raise keys["threads_per_core"].wrong(
                f"{count} pCPUs are not a multiple of {threads} threads per core: change the count"
            )
    if "smt_busy_factor" not in keys:
        return threads, None
    factor = keys["smt_busy_factor"].number(FACTOR_LEAST, 1)
    if threads == 1:
        raise keys["smt_busy_factor"].wrong(
            f"{keys['smt_busy_factor'].path} needs siblings: give threads_per_core as well"
        )
    return threads, factor
