"""The calibration file: where a machine's coefficients and nominal Ips are kept.

It is written whole or not at all, says where every figure comes from, and is believed only on the
machine that it describes.
"""

import contextlib
import dataclasses
import json
import math
import os
import socket
import tempfile
import types
import typing
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from amp_nova.exceptions import CalibrationInvalid
from amp_nova.hardware import calibration as calibration_
from amp_nova.hardware import coefficients
from amp_nova.hardware.calibration import Calibration, Provenance
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology

SOURCE = "calibration"
STALE_AFTER_DAYS = 180
"""Firmware, thermal paste and neighbours change; twice a year is cheap."""
AGAIN = "run 'amp-nova calibrate' again"

T = TypeVar("T")


def provenance(
    stress_ng_version: str,
    run_s: int,
    repeat: int,
    forced: bool,
    root: str = "/",
    now: datetime | None = None,
) -> Provenance:
    """What the machine is at this moment."""
    return Provenance(
        date=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        **machine(root),
        kernel_release=_line(Path(root, "proc/sys/kernel/osrelease")) or os.uname().release,
        stress_ng_version=stress_ng_version,
        run_s=run_s,
        repeat=repeat,
        forced=forced,
    )


def machine(root: str = "/") -> dict[str, str | None]:
    """What decides the speed of the cores; several values where the pCPUs differ."""
    cpu = Path(root, "sys/devices/system/cpu")
    said = _cpuinfo(root)
    arm = " ".join(v for k in ("CPU implementer", "CPU part") if (v := said.get(k)))
    return {
        "cpu_model": said.get("model name") or said.get("cpu") or arm or None,
        "microcode": said.get("microcode"),
        "governor": _joined(_line(p) for p in cpu.glob("cpu[0-9]*/cpufreq/scaling_governor")),
        "turbo": _turbo(cpu),
        "smt": _line(cpu / "smt/control"),
    }


def _cpuinfo(root: str) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    with contextlib.suppress(OSError):
        for line in Path(root, "proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), set()).add(value.strip())
    return {key: " + ".join(sorted(values)) for key, values in found.items()}


def _turbo(cpu: Path) -> str | None:
    no_turbo = _line(cpu / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return "off" if no_turbo == "1" else "on"
    boost = _line(cpu / "cpufreq/boost")
    return None if boost is None else "on" if boost == "1" else "off"


def _line(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _joined(values: Iterable[str | None]) -> str | None:
    return " + ".join(sorted({v for v in values if v})) or None


def read(path: str | Path) -> Calibration:
    """The calibration in a file; ``CalibrationInvalid`` when it holds none."""
    try:
        data = json.loads(Path(path).read_text(), parse_constant=_no_constant)
    except OSError as exc:
        raise CalibrationInvalid(
            f"the calibration {path} cannot be read: {exc.strerror}; name another file or {AGAIN}"
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise CalibrationInvalid(f"{path} is not a calibration file ({exc}); {AGAIN}") from exc
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != calibration_.SCHEMA:
        raise CalibrationInvalid(
            f"{path} is a calibration of format {schema!r} where this amp-nova reads"
            f" {calibration_.SCHEMA}; {AGAIN}"
        )
    try:
        found = _decode(Calibration, data, "")
        _check(found)
        return found
    except ValueError as exc:
        raise CalibrationInvalid(f"{path} is damaged: {exc}; {AGAIN}") from exc


def made_s(path: str | Path) -> float:
    """When the calibration in a file was made, in seconds since the epoch."""
    return _date(read(path).provenance).timestamp()


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no measurement")


def _decode(wanted: type[T], data: Any, where: str) -> T:
    """The frozen dataclass that this JSON describes; a ``ValueError`` names what does not."""
    if not isinstance(data, dict):
        raise ValueError(f"'{where or 'file'}' is not an object")
    hints = typing.get_type_hints(wanted)
    values = {}
    for field in dataclasses.fields(wanted):  # type: ignore[arg-type]  # every T is a dataclass
        name = f"{where}.{field.name}" if where else field.name
        if field.name not in data:
            raise ValueError(f"'{name}' is missing")
        values[field.name] = _value(hints[field.name], data[field.name], name)
    return wanted(**values)


def _value(hint: Any, value: Any, name: str) -> Any:
    if typing.get_origin(hint) is types.UnionType:  # X | None is the only union
        if value is None:
            return None
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"'{name}' is not a list")
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, v, f"{name}[{i}]") for i, v in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return _decode(hint, value, name)  # type: ignore[arg-type]  # a class, not an instance
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise ValueError(f"'{name}' is {value!r}, not of type {hint.__name__}")
    if hint is float and not math.isfinite(value):
        raise ValueError(f"'{name}' is {value!r}")
    return value


def _check(found: Calibration) -> None:
    """What the types do not say."""
    if not found.core_types:
        raise ValueError("'core_types' is empty")
    for result in found.core_types:
        for name in ("coefficient", "nominal_ips"):
            value = getattr(result, name)
            if value is not None and not 0 < value.low <= value.value <= value.high:
                raise ValueError(
                    f"'{name}' of core type '{result.name}' is {value.value!r} between"
                    f" {value.low!r} and {value.high!r}"
                )
    for sample in found.samples:
        if not (sample.ops > 0 and sample.cpu_s > 0 and sample.wall_s > 0):
            raise ValueError(f"a sample of core type '{sample.core_type}' has done nothing")
    if found.reference_host is None and found.reference not in {t.name for t in found.core_types}:
        raise ValueError(f"'reference' is {found.reference!r}, none of its core types")
    _date(found.provenance)


def _date(made: Provenance) -> datetime:
    try:
        date = datetime.fromisoformat(made.date)
    except ValueError:
        raise ValueError(f"'provenance.date' is {made.date!r}, not a date") from None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def write(path: str | Path, calibration: Calibration) -> None:
    """Replace the file by this calibration at one stroke: a reader sees the old one or the new."""
    text = json.dumps(dataclasses.asdict(calibration), indent=2, allow_nan=False) + "\n"

    def put(handle: int) -> None:
        os.fchmod(handle, 0o644)  # there is nothing secret in it
        with os.fdopen(handle, "w", closefd=False) as file:
            file.write(text)
            file.flush()
        os.fsync(handle)

    _beside(path, put, replace=True)


def check_writable(path: str | Path) -> None:
    """Raise ``CalibrationInvalid`` if ``write`` would: before minutes of measuring, not after."""
    _beside(path, lambda _: None, replace=False)


def _beside(path: str | Path, put: Callable[[int], None], replace: bool) -> None:
    """Write a temporary file beside ``path`` and move it there, or remove it."""
    target = Path(os.path.realpath(path))  # a symbolic link stays one
    try:
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            put(handle)
            if replace:
                os.replace(temporary, target)
        finally:
            os.close(handle)
            Path(temporary).unlink(missing_ok=True)
        if replace:
            _sync_folder(target.parent)
    except OSError as exc:
        raise CalibrationInvalid(
            f"the calibration cannot be written to {path}: {exc.strerror}; run as root or name"
            " another file with --output"
        ) from exc


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)  # else the new name may be gone after a power cut
    finally:
        os.close(handle)


def apply(
    topology: Topology, path: str | Path, root: str = "/", now: datetime | None = None
) -> Topology:
    """The topology with what the calibration file says, if it is of this machine.

    Args:
        topology: as detected or configured; a coefficient from the configuration stays.
        path: the file; empty or missing changes nothing.
        root: where ``/sys`` and ``/proc`` of the machine are found.
        now: moment to count the age of the calibration to.

    Returns:
        The same topology with one warning for each thing that differs.

    Raises:
        CalibrationInvalid: the file is not a calibration; says which file and what to do.
    """
    if not str(path) or not os.path.lexists(path):
        return topology
    found = read(path)
    state = machine(root)
    foreign = _not_of(found, topology, state)
    if foreign:
        return _warned(topology, f"the calibration {path} is not used: {foreign}; {AGAIN}")
    doubts = _changes(found, state, root) + _age(found, now or datetime.now(UTC))
    warnings = [f"the calibration {path} is used, but {doubt}; {AGAIN}" for doubt in doubts]
    if found.reference != topology.reference and found.reference_host is None:
        warnings.append(
            f"the calibration {path} is relative to '{found.reference}', not to"
            f" '{topology.reference}'; set [topology] reference = {found.reference}, or {AGAIN}"
        )
    measured = {
        t.name: (t.coefficient.value, t.nominal_ips.value if t.nominal_ips else None)
        for t in found.core_types
        if topology.pcpus_of(t.name)
    }
    busy = {t.name: t.smt_busy_factor.value for t in found.core_types if t.smt_busy_factor}
    types = tuple(
        dataclasses.replace(t, smt_busy_factor=busy.get(t.name)) for t in topology.core_types
    )
    referred = dataclasses.replace(topology, core_types=types, reference=found.reference)
    return _warned(coefficients.with_coefficients(referred, measured, SOURCE), *warnings)


def _warned(topology: Topology, *sentences: str) -> Topology:
    return dataclasses.replace(topology, warnings=topology.warnings + sentences)


def _not_of(found: Calibration, topology: Topology, state: dict[str, str | None]) -> str | None:
    """Why this calibration is of another machine, ``None`` when it is of this one."""
    made = found.provenance
    if made.cpu_model != state["cpu_model"]:
        return f"it is of CPU model '{made.cpu_model}', this machine is '{state['cpu_model']}'"
    theirs = {t.name: frozenset(t.pcpus) for t in found.core_types}
    ours = {t.name: topology.pcpus_of(t.name) for t in topology.core_types}
    offline = set(topology.offline)
    # A core type whose cores are all offline now cannot be seen; what the others are worth stays.
    asleep = {name for name, pcpus in theirs.items() if name not in ours and pcpus <= offline}
    if theirs.keys() - asleep != ours.keys():
        return f"it is of core types {', '.join(theirs)}, this machine has {', '.join(ours)}"
    for name, pcpus in ours.items():
        # A core that is offline at the moment does not make the others another machine.
        if pcpus - theirs[name] or theirs[name] - pcpus - offline:
            return (
                f"core type '{name}' was pCPUs {cpulist.show(theirs[name])} and is"
                f" {cpulist.show(pcpus) or 'none'}"
            )
    if topology.reference not in (*ours, found.reference):
        return f"it is relative to '{found.reference}', not to '{topology.reference}'"
    return None


def _changes(found: Calibration, state: dict[str, str | None], root: str) -> list[str]:
    made = dataclasses.asdict(found.provenance)
    kernel = {"kernel_release": _line(Path(root, "proc/sys/kernel/osrelease"))}
    return [
        f"{name.replace('_', ' ')} was '{made[name]}' and is '{value}'"
        for name, value in (state | kernel).items()
        if made[name] != value and name != "cpu_model"
    ]


def _age(found: Calibration, now: datetime) -> list[str]:
    days = (now - _date(found.provenance)).days
    return [f"it is {days} days old"] if days > STALE_AFTER_DAYS else []
