"""Coefficients of core types: how fast each is over the reference core, and who says so.

In this order: the operator's configuration, a calibration (``with_coefficients``), the kernel's
``cpu_capacity``, the firmware's CPPC ``highest_perf`` where that is a speed. A type is as fast as
the slowest CPU in it, so that a booking is kept on whichever of them it lands. Frequencies and
model names give none: half the clock is not half the work.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from amp_nova.exceptions import CalibrationInvalid
from amp_nova.hardware import operator_types, speed_classes
from amp_nova.hardware.facts import CpuFacts
from amp_nova.hardware.operator_types import ConfiguredType
from amp_nova.model.topology import CoreType, Topology

REFERENCE = "reference core"
ONLY_TYPE = "only core type"
CAPACITY = "cpu_capacity"
PERF = "ACPI CPPC highest_perf"


def declare(
    topology: Topology, members: Mapping[str, Sequence[CpuFacts]], lines: Sequence[ConfiguredType]
) -> Topology:
    """Fill in what the configuration gives, then what kernel and firmware declare.

    Args:
        topology: the core types, slowest first, without coefficients.
        members: the CPUs of each.
        lines: the operator's core types, if there are any.
    """
    given = {t.name: t.coefficient for t in lines if t.coefficient is not None}
    declared, source = _declared(topology, members)
    alone = len(members) == 1 and len(lines) < 2
    types = []
    for t in topology.core_types:
        if t.name in given:
            types.append(
                replace(t, coefficient=given[t.name], coefficient_source=operator_types.SOURCE)
            )
        elif t.name == topology.reference:
            only = ONLY_TYPE if alone else REFERENCE
            types.append(replace(t, coefficient=1.0, coefficient_source=only))
        elif t.name in declared:
            types.append(replace(t, coefficient=declared[t.name], coefficient_source=source))
        else:
            types.append(t)
    return _with_types(topology, [_clocked(t, members.get(t.name, ())) for t in types])


def _clocked(core_type: CoreType, cpus: Sequence[CpuFacts]) -> CoreType:
    """The core type with its nominal clock: the one that all of its CPUs keep up for good."""
    if not cpus or not speed_classes.known(cpus, speed_classes.base_freq):
        return core_type
    return replace(core_type, clock_hz=speed_classes.lowest(cpus, speed_classes.base_freq) * 1e3)


def with_coefficients(
    topology: Topology, measured: Mapping[str, tuple[float | None, float | None]], source: str
) -> Topology:
    """The topology with what was measured; what the operator configured stays.

    Args:
        topology: as classified.
        measured: coefficient and nominal Ips by core type, ``None`` where not measured.
        source: what the coefficients come from, for people.

    Raises:
        CalibrationInvalid: a core type this topology has not, or a value that cannot be.
    """
    for name, values in measured.items():
        if name not in {t.name for t in topology.core_types}:
            have = ", ".join(t.name for t in topology.core_types)
            raise CalibrationInvalid(
                f"the calibration is of core type '{name}', but this host has {have}; run "
                "'amp-nova calibrate' again"
            )
        for value in values:
            if value is not None and not (math.isfinite(value) and value > 0):
                raise CalibrationInvalid(
                    f"the calibration of core type '{name}' says {value}, which must be a number "
                    "above 0; run 'amp-nova calibrate' again"
                )
    types = []
    for t in topology.core_types:
        coefficient, nominal_ips = measured.get(t.name, (None, None))
        if coefficient is not None and t.coefficient_source != operator_types.SOURCE:
            t = replace(t, coefficient=coefficient, coefficient_source=source)
        types.append(t if nominal_ips is None else replace(t, nominal_ips=nominal_ips))
    if all(t.coefficient is not None for t in types):
        types.sort(key=lambda t: t.coefficient or 0)
    return _with_types(topology, types)


def _declared(
    topology: Topology, members: Mapping[str, Sequence[CpuFacts]]
) -> tuple[dict[str, float], str]:
    """Ratios to the reference core from the best source that has them, and that source."""
    cpus = [c for group in members.values() for c in group]
    if topology.reference not in members:
        return {}, ""
    if speed_classes.differs(cpus, speed_classes.capacity):
        source, reading = CAPACITY, speed_classes.capacity
    elif speed_classes.differs(cpus, speed_classes.perf) and all(map(_perf_is_speed, cpus)):
        source, reading = PERF, speed_classes.perf
    else:
        return {}, ""
    lowest = [speed_classes.lowest(members[t.name], reading) for t in topology.core_types]
    if lowest != sorted(lowest) or lowest[-1] < lowest[0] * speed_classes.SPEED_GAP:
        return {}, ""  # two types that are told apart otherwise cannot be as fast as this says
    base = speed_classes.lowest(members[topology.reference], reading)
    ratios = [low / base for low in lowest]
    return dict(zip((t.name for t in topology.core_types), ratios, strict=True)), source


def _perf_is_speed(cpu: CpuFacts) -> bool:
    """Intel's and Arm's highest_perf is linear in speed; AMD's ranks, others' is not known."""
    return cpu.vendor == "GenuineIntel" or cpu.implementer is not None


def _with_types(topology: Topology, types: Sequence[CoreType]) -> Topology:
    stale = set(_warnings(topology.core_types))
    kept = tuple(w for w in topology.warnings if w not in stale)
    return replace(topology, core_types=tuple(types), warnings=kept + _warnings(types))


def _warnings(types: Sequence[CoreType]) -> tuple[str, ...]:
    declared = [t.name for t in types if t.coefficient_source == PERF]
    missing = [t.name for t in types if t.coefficient is None]
    found = []
    if declared:
        found.append(
            f"the coefficient of {', '.join(declared)} is declared by the firmware, not measured: "
            "run 'amp-nova calibrate'"
        )
    if missing:
        found.append(
            f"nothing trustworthy gives the coefficient of {', '.join(missing)}: run 'amp-nova "
            "calibrate' or set it in [topology] core_type"
        )
    return tuple(found)
