"""What a machine says about its CPUs, raw: the input of ``hardware.detect``.

``None`` means that the machine does not say. A number here is what was read, in the kernel's unit.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """One logical CPU."""

    id: int
    online: bool = True
    siblings: tuple[int, ...] = ()
    """Hardware threads of the same core; empty when not said."""
    package: int | None = None
    core_id: int | None = None
    numa_node: int | None = None
    llc: int | None = None
    """Lowest CPU id that shares the last-level cache."""
    isolated: bool = False
    capacity: int | None = None
    """``cpu_capacity``: speed that the kernel declares, 1024 for the fastest."""
    highest_perf: int | None = None
    """ACPI CPPC ``highest_perf``, in the firmware's own abstract unit."""
    max_freq_khz: int | None = None
    base_freq_khz: int | None = None
    vendor: str | None = None
    """x86: ``GenuineIntel``, ``AuthenticAMD``, ..."""
    family: int | None = None
    model: int | None = None
    implementer: int | None = None
    """Arm: who designed the core, from MIDR."""
    part: int | None = None
    """Arm: which core of that implementer, from MIDR."""
    uarch: str | None = None
    """RISC-V: the design's name."""
    hybrid: bool = False
    """The CPU itself says that the machine has cores of several types."""
    virtual: bool = False
    """The CPU says that a hypervisor is below it."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """All CPUs of one machine, by id."""

    cpus: tuple[CpuFacts, ...]
    pmus: tuple[tuple[str, frozenset[int]], ...] = ()
    """Performance-counter units that serve one core type each (``cpu_core``, ``cpu_atom``)."""
    warnings: tuple[str, ...] = ()
