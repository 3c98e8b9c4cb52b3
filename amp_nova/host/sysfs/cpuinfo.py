"""``/proc/cpuinfo``: how each CPU describes itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.hardware.facts import CpuModel


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """The entry of one CPU in ``/proc/cpuinfo``."""

    model: CpuModel = field(default_factory=CpuModel)
    package: int | None = None
    core_id: int | None = None


def parse(text: str) -> dict[int, CpuInfo]:
    """Entries by CPU id; lines outside any entry (old Arm kernels) apply to all CPUs."""
    shared: dict[str, str] = {}
    own: dict[int, dict[str, str]] = {}
    for block in text.split("\n\n"):
        pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
        values = {key.strip(): value.strip() for key, value in pairs}
        cpu = _number(values.pop("processor", ""))
        if cpu is None:
            shared |= values
        else:
            own[cpu] = values
    return {cpu: _info(shared | values) for cpu, values in own.items()}


def _info(values: Mapping[str, str]) -> CpuInfo:
    vendor = values.get("vendor_id")
    flags = values.get("flags", "").split()
    model = CpuModel(
        vendor=vendor,
        family=_number(values.get("cpu family", "")),
        # on POWER, "model" is the name of the machine
        model=_number(values.get("model", "")) if vendor else None,
        implementer=_number(values.get("CPU implementer", "")),
        part=_number(values.get("CPU part", "")),
        uarch=values.get("uarch"),
        hybrid="hybrid_cpu" in flags or "hybrid" in flags,
        virtual="hypervisor" in flags,
    )
    return CpuInfo(
        model, _number(values.get("physical id", "")), _number(values.get("core id", ""))
    )


def _number(text: str) -> int | None:
    try:
        return int(text, 16) if text.startswith("0x") else int(text)
    except ValueError:
        return None
