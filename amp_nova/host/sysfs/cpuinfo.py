"""``/proc/cpuinfo``: what each CPU says about itself."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """The lines of ``/proc/cpuinfo`` that tell designs and cores apart."""

    vendor: str | None = None
    family: int | None = None
    model: int | None = None
    implementer: int | None = None
    part: int | None = None
    uarch: str | None = None
    package: int | None = None
    core_id: int | None = None
    hybrid: bool = False
    virtual: bool = False


def parse(text: str) -> dict[int, CpuInfo]:
    """What is said about each CPU; lines that belong to none (old Arm kernels) hold for all."""
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
    return CpuInfo(
        vendor=vendor,
        family=_number(values.get("cpu family", "")),
        # POWER calls the whole machine's name its model
        model=_number(values.get("model", "")) if vendor else None,
        implementer=_number(values.get("CPU implementer", "")),
        part=_number(values.get("CPU part", "")),
        uarch=values.get("uarch"),
        package=_number(values.get("physical id", "")),
        core_id=_number(values.get("core id", "")),
        hybrid="hybrid_cpu" in flags or "hybrid" in flags,
        virtual="hypervisor" in flags,
    )


def _number(text: str) -> int | None:
    try:
        return int(text, 16) if text.startswith("0x") else int(text)
    except ValueError:
        return None
