# SPDX-License-Identifier: Apache-2.0
"""Writes the files in which a machine reports its facts."""

from amp_nova.model import cpulist


def write(root, facts, mask=True):
    """A machine's sys and proc under ``root``; ``mask``: with the kernel's list of online CPUs."""
    base = root / "sys/devices/system/cpu"
    for cpu in facts.cpus:
        _cpu(base / f"cpu{cpu.id}", cpu)
    online = [c for c in facts.cpus if c.online]
    if mask:
        _put(base / "online", cpulist.show(c.id for c in online))
    _put(base / "isolated", cpulist.show(c.id for c in online if c.isolated))
    for name, ids in facts.pmus:
        _put(root / f"sys/devices/{name}/cpus", cpulist.show(ids))
    _put(root / "proc/cpuinfo", "\n".join(_cpuinfo(c) for c in online))
    return root


def _cpu(here, cpu):
    here.mkdir(parents=True)
    if cpu.id or not cpu.online:
        _put(here / "online", int(cpu.online))
    numbers = {
        "topology/physical_package_id": cpu.package,
        "topology/cluster_id": cpu.cluster,
        "topology/core_id": cpu.core_id,
        "cpu_capacity": cpu.speeds.capacity,
        "acpi_cppc/highest_perf": cpu.speeds.highest_perf,
        "cpufreq/cpuinfo_max_freq": cpu.speeds.max_freq_khz,
        "cpufreq/base_frequency": cpu.speeds.base_freq_khz,
    }
    for path, number in numbers.items():
        if number is not None:
            _put(here / path, number)
    if cpu.siblings:
        _put(here / "topology/thread_siblings_list", cpulist.show(cpu.siblings))
    if cpu.llc is not None:
        for index, level, kind, shared in (
            (0, 1, "Data", cpu.id),
            (1, 1, "Instruction", cpu.id),
            (2, 3, "Unified", f"{cpu.llc}-{max(cpu.llc, cpu.id)}"),
        ):
            _put(here / f"cache/index{index}/level", level)
            _put(here / f"cache/index{index}/type", kind)
            _put(here / f"cache/index{index}/shared_cpu_list", shared)


def _cpuinfo(cpu):
    model = cpu.model
    flags = ["fpu", *["hypervisor"] * model.virtual, *["hybrid_cpu"] * model.hybrid]
    lines = {
        "processor": cpu.id,
        "vendor_id": model.vendor,
        "cpu family": model.family,
        "model": model.model,
        "uarch": model.uarch,
        "CPU implementer": None if model.implementer is None else hex(model.implementer),
        "CPU part": None if model.part is None else hex(model.part),
        "flags": " ".join(flags) if model.virtual or model.hybrid else None,
    }
    return "".join(f"{key}\t: {value}\n" for key, value in lines.items() if value is not None)


def _put(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")
