# SPDX-License-Identifier: Apache-2.0
"""The calibration file: reads, checks and writes it.

A file is replaced atomically. It has a calibration for each of several CPU models, says where every
value comes from, and is used only on the machines that it describes (see ``provenance``).
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from amp_nova.exceptions import CalibrationInvalid
from amp_nova.hardware.calibration import Calibration, Provenance
from amp_nova.private_files import replace_file

AGAIN = "run 'amp-nova calibrate' again"
SCHEMA = 2


class _Calibrations(msgspec.Struct, frozen=True):
    schema: int
    calibrations: tuple[Calibration, ...]


def read(path: str | Path) -> tuple[Calibration, ...]:
    """The calibrations in a file, at least one; ``CalibrationInvalid`` if one is damaged."""
    try:
        text = Path(path).read_bytes()
        schema = msgspec.json.decode(text, type=dict[str, Any]).get("schema")
        if schema != SCHEMA:
            raise CalibrationInvalid(
                f"{path} is a calibration of format {schema!r}, but this amp-nova reads {SCHEMA};"
                f" {AGAIN}"
            )
        calibrations = msgspec.json.decode(text, type=_Calibrations).calibrations
        if not calibrations:
            raise ValueError("'calibrations' is empty")
        for calibration in calibrations:
            _check(calibration)
        return calibrations
    except OSError as exc:
        raise CalibrationInvalid(
            f"the calibration {path} cannot be read: {exc.strerror}; name another file or {AGAIN}"
        ) from exc
    except (ValueError, RecursionError) as exc:  # msgspec's errors are ValueErrors
        raise CalibrationInvalid(f"{path} is damaged: {exc}; {AGAIN}") from exc


def date(made: Provenance) -> datetime:
    """When a calibration was made; ``ValueError`` if its date is malformed."""
    try:
        timestamp = datetime.fromisoformat(made.date)
    except ValueError:
        raise ValueError(f"'provenance.date' is {made.date!r}, not a date") from None
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)


def _check(calibration: Calibration) -> None:
    """Raise ``ValueError`` if a value has the right type but is impossible."""
    if not calibration.core_types:
        raise ValueError("'core_types' is empty")
    for result in calibration.core_types:
        for name in ("coefficient", "nominal_ips", "ops_per_cpu_s", "miss_cycles"):
            value = getattr(result, name)
            if value is not None and not 0 < value.low <= value.value <= value.high:
                raise ValueError(
                    f"'{name}' of core type '{result.name}' is {value.value!r} between"
                    f" {value.low!r} and {value.high!r}"
                )
    names = {t.name for t in calibration.core_types}
    if calibration.reference_host is None and calibration.reference not in names:
        raise ValueError(f"'reference' is {calibration.reference!r}, not one of its core types")
    date(calibration.provenance)


def write(path: str | Path, calibrations: Sequence[Calibration]) -> None:
    """Replace the file atomically; ``CalibrationInvalid`` if it cannot be written."""
    document = _Calibrations(SCHEMA, tuple(calibrations))
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    with _target(path) as target:
        replace_file(target, text + b"\n")


def check_writable(path: str | Path) -> None:
    """Raise ``CalibrationInvalid`` if ``write`` would; called before minutes of measuring."""
    with _target(path) as target, tempfile.TemporaryFile(dir=target.parent):
        pass


@contextlib.contextmanager
def _target(path: str | Path) -> Iterator[Path]:
    """The file to replace, with symbolic links resolved; ``OSError`` is translated."""
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        target.parent.mkdir(parents=True, exist_ok=True)
        yield target
    except OSError as exc:
        raise CalibrationInvalid(
            f"the calibration cannot be written to {path}: {exc.strerror}; run as root or name"
            " another file with --output"
        ) from exc
