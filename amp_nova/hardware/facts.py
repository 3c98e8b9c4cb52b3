"""What a machine reports about its CPUs, uninterpreted: the input of ``hardware.detect``.

``None`` means that the machine does not report the value. Numbers are in the kernel's units.
"""

from dataclasses import dataclass, field


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
    core_id: int | None = None
    numa_node: int | None = None
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
