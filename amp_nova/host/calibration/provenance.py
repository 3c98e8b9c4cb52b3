# SPDX-License-Identifier: Apache-2.0
"""Which machine a calibration was made on, and whether that is this one."""

import dataclasses
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from amp_nova.hardware import coefficients, operator_types
from amp_nova.hardware.calibration import Calibration, Estimate, Provenance, TypeResult
from amp_nova.host.calibration import file, kernels
from amp_nova.host.calibration.file import AGAIN
from amp_nova.host.sysfs import Tree, cpuinfo
from amp_nova.model import cpulist
from amp_nova.model.topology import CoreType, Topology

SOURCE = "calibration"
STALE_AFTER_DAYS = 180
"""Age that draws a warning: firmware, cooling and neighbouring machines change over time."""


def machine(root: str = "/") -> dict[str, str | None]:
    """What determines the speed of the cores; values that differ between pCPUs are joined by +."""
    cpu, tree = "sys/devices/system/cpu", Tree(root)
    entries = cpuinfo(tree).values()

    def info(key: str) -> str | None:
        return " + ".join(sorted({e[key] for e in entries if e.get(key)})) or None

    arm = " ".join(v for k in ("CPU implementer", "CPU part") if (v := info(k)))
    ids = tree.numbered(cpu, "cpu")
    governors = {tree.text(f"{cpu}/cpu{i}/cpufreq/scaling_governor") for i in ids}
    return {
        "cpu_model": info("model name") or info("cpu") or arm or None,
        "microcode": info("microcode"),
        "governor": " + ".join(sorted(filter(None, governors))) or None,
        "turbo": _turbo(tree, cpu),
        "smt": tree.text(f"{cpu}/smt/control"),
        "kernel_release": tree.text("proc/sys/kernel/osrelease"),
    }


def of_run(run_s: int, repeat: int, forced: bool, in_service: bool, root: str = "/") -> Provenance:
    """The provenance of a calibration that is made now, on this machine."""
    about = machine(root)
    about["kernel_release"] = about["kernel_release"] or os.uname().release
    return Provenance(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        **about,  # type: ignore[arg-type]  # kernel_release is never None
        run_s=run_s,
        repeat=repeat,
        forced=forced,
        python_version=kernels.VERSION,
        in_service=in_service,
    )


def _turbo(tree: Tree, cpu: str) -> str | None:
    no_turbo = tree.text(f"{cpu}/intel_pstate/no_turbo")
    if no_turbo is not None:
        return "off" if no_turbo == "1" else "on"
    boost = tree.text(f"{cpu}/cpufreq/boost")
    return None if boost is None else "on" if boost == "1" else "off"


def apply(
    topology: Topology, path: str | Path, root: str = "/", now: datetime | None = None
) -> Topology:
    """The topology with the calibration of this CPU model, if the file has it and it fits.

    There is a warning for each way in which the machine has changed since. Coefficients that the
    operator configured stay. ``now``: when the age of the calibration is judged. Raises
    ``CalibrationInvalid`` if the file is not a calibration.
    """
    calibrations, state = file.read(path), machine(root)
    calibration = own(calibrations, root)
    if calibration is None:
        models = ", ".join(f"'{c.provenance.cpu_model}'" for c in calibrations)
        foreign = f"it was made on CPU model {models}, but this is '{state['cpu_model']}'"
        return _warned(topology, f"the calibration {path} is not used: {foreign}; {AGAIN}")
    if mismatch := _mismatch(calibration, topology):
        return _warned(topology, f"the calibration {path} is not used: {mismatch}; {AGAIN}")
    then = dataclasses.asdict(calibration.provenance)
    doubts = [
        f"{name.replace('_', ' ')} was {_shown(then[name])} and is {_shown(value)}"
        for name, value in state.items()
        if then[name] != value
    ]
    days = ((now or datetime.now(UTC)) - file.date(calibration.provenance)).days
    doubts += [f"it is {days} days old"] if days > STALE_AFTER_DAYS else []
    warnings = [f"the calibration {path} is used, but {doubt}; {AGAIN}" for doubt in doubts]
    if calibration.reference != topology.reference and calibration.reference_host is None:
        warnings.append(
            f"the calibration {path} is relative to '{calibration.reference}', not to"
            f" '{topology.reference}'; set [topology] reference = {calibration.reference}, or"
            f" {AGAIN}"
        )
    results = {t.name: t for t in calibration.core_types}
    types = [_measured(t, results[t.name]) for t in topology.core_types]
    types.sort(key=lambda t: t.coefficient or 0)
    relative = dataclasses.replace(topology, reference=calibration.reference)
    return _warned(coefficients.with_types(relative, types), *warnings)


def _measured(core_type: CoreType, result: TypeResult) -> CoreType:
    """A core type as it was measured; a coefficient that the operator configured stays."""
    if core_type.coefficient_source != operator_types.SOURCE:
        core_type = dataclasses.replace(
            core_type, coefficient=result.coefficient.value, coefficient_source=SOURCE
        )
    return dataclasses.replace(
        core_type,
        nominal_ips=_value(result.nominal_ips),
        smt_busy_factor=_value(result.smt_busy_factor),
        clock_hz=_value(result.clock_hz) or core_type.clock_hz,
        clock_calibrated=result.clock_hz is not None,
        miss_cycles=_value(result.miss_cycles),
    )


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _warned(topology: Topology, *warnings: str) -> Topology:
    return dataclasses.replace(topology, warnings=topology.warnings + warnings)


def own(calibrations: Sequence[Calibration], root: str = "/") -> Calibration | None:
    """The calibration of this CPU model, ``None`` if there is none."""
    model = machine(root)["cpu_model"]
    return next((c for c in calibrations if c.provenance.cpu_model == model), None)


def _mismatch(calibration: Calibration, topology: Topology) -> str | None:
    """Why this calibration belongs to another machine, ``None`` if it belongs to this one."""
    calibrated = {t.name: frozenset(t.pcpus) for t in calibration.core_types}
    here = {t.name: topology.pcpus_of(t.name) for t in topology.core_types}
    offline = set(topology.offline)
    # A core type whose cores are all offline is not detected; the others keep their coefficients.
    hidden = {name for name, ids in calibrated.items() if name not in here and ids <= offline}
    if calibrated.keys() - hidden != here.keys():
        return f"it has core types {', '.join(calibrated)}, this machine has {', '.join(here)}"
    for name, ids in here.items():
        if ids - calibrated[name] or calibrated[name] - ids - offline:
            return (
                f"core type '{name}' was pCPUs {cpulist.show(calibrated[name])} and is"
                f" {cpulist.show(ids) or 'none'}"
            )
    if topology.reference not in (*here, calibration.reference):
        return f"it is relative to '{calibration.reference}', not to '{topology.reference}'"
    return None


def _shown(value: str | None) -> str:
    return "unknown" if value is None else f"'{value}'"
