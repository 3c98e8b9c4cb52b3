# SPDX-License-Identifier: Apache-2.0
"""Core types that the operator declares, one line each.

The line is ``NAME CPUS [COEFFICIENT] [threads=N] [smt=FACTOR]``.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amp_nova.exceptions import ConfigInvalid
from amp_nova.hardware.designs import NAME
from amp_nova.model import cpulist

SOURCE = "configuration ([topology] core_type)"


@dataclass(frozen=True, slots=True)
class ConfiguredType:
    """One line of ``[topology] core_type``.

    ``threads``: of each core, neighbours in ``cpus``; ``None``: as the machine reports. A virtual
    machine may show two threads of a core of the physical machine as separate cores.
    ``smt_busy_factor``: instead of the measured one.
    """

    name: str
    cpus: tuple[int, ...]
    coefficient: float | None = None
    threads: int | None = None
    smt_busy_factor: float | None = None


def parse(line: str) -> ConfiguredType:
    """Parse one line; ``ConfigInvalid`` if it is malformed."""
    words = [word for word in line.split() if "=" not in word]
    options = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
    if len(words) not in (2, 3) or not options.keys() <= {"threads", "smt"}:
        raise ConfigInvalid(
            f"[topology] core_type '{line}' must be 'NAME CPUS [COEFFICIENT] [threads=N] "
            "[smt=FACTOR]', such as 'fast 0-7 1.85'"
        )
    name, cpus, *coefficient = words
    if not NAME.fullmatch(name):
        raise ConfigInvalid(
            f"[topology] core_type '{name}' must consist of lower-case letters, digits, '-' and "
            "'_', and begin with a letter or digit"
        )
    try:
        ids = cpulist.parse(cpus)
    except ValueError as exc:
        raise ConfigInvalid(
            f"[topology] core_type {name} has pCPUs '{cpus}', but {exc}; write them as '0-7,16-23'"
        ) from exc
    speed = _coefficient(name, coefficient[0]) if coefficient else None
    threads, smt = options.get("threads"), options.get("smt")
    if threads not in (None, "1", "2", "4", "8") or len(ids) % int(threads or 1):
        raise ConfigInvalid(
            f"[topology] core_type {name} has threads={threads}, which must be 1, 2, 4 or 8 and "
            f"divide its {len(ids)} pCPUs"
        )
    if smt is not None and not re.fullmatch(r"1(\.0*)?|0?\.[1-9][0-9]*", smt):
        raise ConfigInvalid(
            f"[topology] core_type {name} has smt={smt}, which must be a number from 0.1 to 1"
        )
    return ConfiguredType(
        name, ids, speed, int(threads) if threads else None, float(smt) if smt else None
    )


def check(lines: Sequence[ConfiguredType], present: set[int], online: set[int]) -> None:
    """Raise ``ConfigInvalid`` unless the lines name each online pCPU once, and no others."""
    owner: dict[int, str] = {}
    names: set[str] = set()
    for line in lines:
        if line.name in names:
            raise ConfigInvalid(f"[topology] core_type {line.name} is given twice; join its pCPUs")
        names.add(line.name)
        if unknown := set(line.cpus) - present:
            raise ConfigInvalid(
                f"[topology] core_type {line.name} names pCPUs {cpulist.show(unknown)}, which this "
                f"machine does not have; it has {cpulist.show(present)}"
            )
        for cpu in line.cpus:
            if cpu in owner:
                raise ConfigInvalid(
                    f"[topology] core_type names pCPU {cpu} twice, for {owner[cpu]} and {line.name}"
                )
            owner[cpu] = line.name
    if missing := online - set(owner):
        raise ConfigInvalid(
            f"[topology] core_type leaves out online pCPUs {cpulist.show(missing)}; add them to a "
            "type"
        )


def known_coefficients(
    lines: Sequence[ConfiguredType], reference: str | None = None
) -> dict[str, float]:
    """Coefficients by core type: as configured, and 1 for the reference core if it is evident."""
    coefficients = {t.name: t.coefficient for t in lines if t.coefficient is not None}
    missing = [t.name for t in lines if t.coefficient is None]
    if reference in missing:
        coefficients[reference] = 1.0
    elif reference is None and len(missing) == 1 and 1.0 not in coefficients.values():
        coefficients[missing[0]] = 1.0
    return coefficients


def reference(lines: Sequence[ConfiguredType], ordered: Iterable[str], option: str | None) -> str:
    """The reference core: ``option``, or the type of coefficient 1, or the slowest without one.

    ``ordered``: names of the types that have an online pCPU, slowest first; ``option``: the core
    type in ``[topology] reference``. Raises ``ConfigInvalid`` if the coefficients leave none.
    """
    coefficients = known_coefficients(lines, option)
    if option is not None:
        if coefficients.get(option, 1.0) != 1.0:
            raise ConfigInvalid(
                f"[topology] core_type {option} has coefficient {coefficients[option]:g}, but it "
                "is the reference core, whose coefficient is 1"
            )
        return option
    for name, coefficient in coefficients.items():
        if coefficient == 1.0:
            return name
    missing = [t.name for t in lines if t.name not in coefficients]
    if not missing:
        raise ConfigInvalid(
            "[topology] core_type gives no type the coefficient 1; name the reference core of your "
            "cloud in [topology] reference"
        )
    return next((n for n in ordered if n in missing), missing[0])


def _coefficient(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigInvalid(
            f"[topology] core_type {name} has coefficient '{text}', which must be a number above 0"
        )
    return value
