# SPDX-License-Identifier: Apache-2.0
"""What CPUs report about themselves, and the design that each one thereby identifies.

The facts are uninterpreted, in the kernel's units; ``None`` means that the machine does not report
the value.

A design is a microarchitecture, such as Cortex-A715 or Intel's E-core. Its name becomes the name of
the core type and so of a Placement trait. The name must not change between boots, so it depends
only on how the CPU identifies itself.
"""

import re
from dataclasses import dataclass, field

NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""Pattern of core type names."""

PMU_DESIGNS = {
    "cpu_core": ("p-core", 2),
    "cpu_atom": ("e-core", 1),
    "cpu_lowpower": ("lp-e-core", 0),
}
"""Intel's performance monitoring units: the design each one serves, and the rank of that design."""

LITTLE, BIG, PRIME = 0, 1, 2

ARM_DESIGNS = {
    (0x41, 0xC07): ("cortex-a7", LITTLE),
    (0x41, 0xC0F): ("cortex-a15", BIG),
    (0x41, 0xC0E): ("cortex-a17", BIG),
    (0x41, 0xD03): ("cortex-a53", LITTLE),
    (0x41, 0xD04): ("cortex-a35", LITTLE),
    (0x41, 0xD05): ("cortex-a55", LITTLE),
    (0x41, 0xD07): ("cortex-a57", BIG),
    (0x41, 0xD08): ("cortex-a72", BIG),
    (0x41, 0xD09): ("cortex-a73", BIG),
    (0x41, 0xD0A): ("cortex-a75", BIG),
    (0x41, 0xD0B): ("cortex-a76", BIG),
    (0x41, 0xD0C): ("neoverse-n1", None),
    (0x41, 0xD0D): ("cortex-a77", BIG),
    (0x41, 0xD40): ("neoverse-v1", None),
    (0x41, 0xD41): ("cortex-a78", BIG),
    (0x41, 0xD44): ("cortex-x1", PRIME),
    (0x41, 0xD46): ("cortex-a510", LITTLE),
    (0x41, 0xD47): ("cortex-a710", BIG),
    (0x41, 0xD48): ("cortex-x2", PRIME),
    (0x41, 0xD49): ("neoverse-n2", None),
    (0x41, 0xD4A): ("neoverse-e1", None),
    (0x41, 0xD4B): ("cortex-a78c", BIG),
    (0x41, 0xD4C): ("cortex-x1c", PRIME),
    (0x41, 0xD4D): ("cortex-a715", BIG),
    (0x41, 0xD4E): ("cortex-x3", PRIME),
    (0x41, 0xD4F): ("neoverse-v2", None),
    (0x41, 0xD80): ("cortex-a520", LITTLE),
    (0x41, 0xD81): ("cortex-a720", BIG),
    (0x41, 0xD82): ("cortex-x4", PRIME),
    (0x41, 0xD84): ("neoverse-v3", None),
    (0x41, 0xD85): ("cortex-x925", PRIME),
    (0x41, 0xD87): ("cortex-a725", BIG),
    (0x41, 0xD8A): ("c1-nano", LITTLE),
    (0x41, 0xD8B): ("c1-pro", BIG),
    (0x41, 0xD8C): ("c1-ultra", PRIME),
    (0x41, 0xD8E): ("neoverse-n3", None),
    (0x46, 0x001): ("a64fx", None),
    (0x48, 0xD01): ("kunpeng-920", None),
    (0x51, 0x001): ("oryon", None),
    (0x51, 0x802): ("kryo-3xx-gold", BIG),
    (0x51, 0x803): ("kryo-3xx-silver", LITTLE),
    (0x51, 0x804): ("kryo-4xx-gold", BIG),
    (0x51, 0x805): ("kryo-4xx-silver", LITTLE),
    (0x61, 0x022): ("apple-icestorm", LITTLE),
    (0x61, 0x023): ("apple-firestorm", BIG),
    (0x61, 0x024): ("apple-icestorm-pro", LITTLE),
    (0x61, 0x025): ("apple-firestorm-pro", BIG),
    (0x61, 0x028): ("apple-icestorm-max", LITTLE),
    (0x61, 0x029): ("apple-firestorm-max", BIG),
    (0x61, 0x032): ("apple-blizzard", LITTLE),
    (0x61, 0x033): ("apple-avalanche", BIG),
    (0x61, 0x034): ("apple-blizzard-pro", LITTLE),
    (0x61, 0x035): ("apple-avalanche-pro", BIG),
    (0x61, 0x038): ("apple-blizzard-max", LITTLE),
    (0x61, 0x039): ("apple-avalanche-max", BIG),
    (0x6D, 0xD49): ("azure-cobalt-100", None),
    (0xC0, 0xAC3): ("ampere-1", None),
    (0xC0, 0xAC4): ("ampere-1a", None),
}
"""Name and rank of a design by MIDR implementer and part (Linux, ``asm/cputype.h``).

Ranks order the designs of one chip: a little core is slower than a big one, which is slower than a
prime one. Server cores have no rank: their chips have one design.
"""

INTEL_HYBRID_MODELS = frozenset(
    # Lakefield; Alder, Raptor, Meteor, Arrow, Lunar, Panther and Wildcat Lake, with variants.
    (0x8A, 0x97, 0x9A, 0xB7, 0xBA, 0xBF, 0xAA, 0xAC, 0xB5, 0xC5, 0xC6, 0xBD, 0xCC, 0xD5)
)
"""Models of family 6 with P- and E-cores, which both report the same model."""

RANKING_VENDORS = frozenset(("AuthenticAMD", "HygonGenuine"))
"""Vendors whose CPPC highest_perf ranks cores for the scheduler and does not measure speed."""


@dataclass(frozen=True, slots=True)
class CpuModel:
    """What a CPU says about its design."""

    vendor: str | None = None
    """x86: ``GenuineIntel``, ``AuthenticAMD``, ..."""
    family: int | None = None
    model: int | None = None
    implementer: int | None = None
    """Arm: the designer of the core, from MIDR."""
    part: int | None = None
    """Arm: the core within that designer's range, from MIDR."""
    uarch: str | None = None
    """RISC-V: the name of the design."""
    hybrid: bool = False
    """Whether the CPU says that its machine has several core types."""
    virtual: bool = False
    """Whether the CPU says that it runs under a hypervisor."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """What kernel and firmware say about the speed of a CPU."""

    capacity: int | None = None
    """``cpu_capacity``: speed according to the kernel, 1024 for the fastest CPU."""
    highest_perf: int | None = None
    """ACPI CPPC ``highest_perf``, in the firmware's own abstract unit."""
    max_freq_khz: int | None = None
    base_freq_khz: int | None = None


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """One logical CPU."""

    id: int
    online: bool = True
    siblings: tuple[int, ...] = ()
    """Hardware threads of the same core; empty if not reported."""
    package: int | None = None
    cluster: int | None = None
    core_id: int | None = None
    llc: int | None = None
    """Lowest CPU id that shares the last-level cache."""
    isolated: bool = False
    model: CpuModel = field(default_factory=CpuModel)
    speeds: Speeds = field(default_factory=Speeds)


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """All CPUs of one machine, in order of id."""

    cpus: tuple[CpuFacts, ...]
    pmus: tuple[tuple[str, frozenset[int]], ...] = ()
    """Intel's performance monitoring units that serve one core type each, with their CPUs."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Design:
    """A microarchitecture."""

    name: str
    origin: str
    """How the design was identified, for display."""
    rank: int | None = None
    """Order among the designs of one chip, slowest first; ``None`` if unknown."""
    named: bool = True
    """Whether a core type takes its name even if it is the only one."""


def of_cpu(cpu: CpuFacts) -> Design | None:
    """The design that a CPU identifies as, ``None`` if it does not identify itself."""
    model = cpu.model
    if model.implementer is not None and model.part is not None:
        unknown = (f"arm-{model.implementer:x}-{model.part:x}", None)
        name, rank = ARM_DESIGNS.get((model.implementer, model.part), unknown)
        return Design(name, "CPU implementer and part", rank)
    if model.family is not None and model.model is not None:
        name = f"{_slug(model.vendor or 'x86')}-{model.family}-{model.model}"
        return Design(name, "CPU family and model", named=False)
    if model.uarch:
        return Design(_slug(model.uarch), "CPU uarch", named=False)
    return None


def sold_as_hybrid(cpu: CpuFacts) -> bool:
    """Whether processors of this CPU's model have several core types."""
    model = cpu.model
    intel = model.vendor == "GenuineIntel" and model.family == 6
    return intel and model.model in INTEL_HYBRID_MODELS


def class_names(stem: str, count: int, hybrid: bool, taken: frozenset[str]) -> list[str]:
    """Names of the ``count`` speed classes of one design, slowest first.

    ``stem`` is the name of the design, or empty if the core type is not named after it; ``taken``
    are the names of the machine's other designs.
    """
    if stem == "e-core" and count == 2 and "lp-e-core" not in taken:
        return ["lp-e-core", "e-core"]  # Meteor Lake lists its low-power E-cores with the E-cores
    if hybrid and not stem and count in (2, 3):
        return ["lp-e-core", "e-core", "p-core"][-count:]
    speeds = {1: [""], 2: ["slow", "fast"], 3: ["slow", "medium", "fast"]}
    suffixes = speeds.get(count) or [f"speed-{i + 1}" for i in range(count)]
    return ["-".join(filter(None, (stem, s))) or "core" for s in suffixes]


def _slug(text: str) -> str:
    short = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "hygon"}
    text = short.get(text, text).lower()
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-") or "cpu"
