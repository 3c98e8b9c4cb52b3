# SPDX-License-Identifier: Apache-2.0
"""Coefficients of core types: their speed relative to the reference core, and its source.

In order of precedence: the operator's configuration, a calibration, the
kernel's ``cpu_capacity``, and the firmware's CPPC ``highest_perf`` if that measures speed. A
type is as fast as its slowest CPU, so that a booking is kept on any of them. Frequencies and model
names give no coefficient: half the clock is not half the work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from amp_nova.hardware import operator_types
from amp_nova.hardware.designs import CpuFacts
from amp_nova.hardware.operator_types import ConfiguredType
from amp_nova.hardware.speed_classes import BASE_FREQ, CAPACITY, PERF, SPEED_GAP
from amp_nova.model.topology import CoreType, Topology

Members = Mapping[str, Sequence[CpuFacts]]
"""The CPUs of each core type."""


def declare(topology: Topology, members: Members, lines: Sequence[ConfiguredType]) -> Topology:
    """Add coefficients from the configuration, then those that kernel and firmware declare.

    ``topology``: the core types, slowest first; ``lines``: the operator's, if any.
    """
    configured = {t.name: t.coefficient for t in lines if t.coefficient is not None}
    declared, source = _declared(topology, members)
    single = len(members) == 1 and len(lines) < 2
    types = []
    for t in topology.core_types:
        found: tuple[float | None, str | None] = None, None
        if BASE_FREQ.known(members[t.name]):
            t = replace(t, clock_hz=BASE_FREQ.lowest(members[t.name]) * 1e3)
        if t.name in configured:
            found = configured[t.name], operator_types.SOURCE
        elif t.name == topology.reference:
            found = 1.0, "only core type" if single else "reference core"
        elif t.name in declared:
            found = declared[t.name], source
        types.append(replace(t, coefficient=found[0], coefficient_source=found[1]))
    return with_types(topology, types)


def _declared(topology: Topology, members: Members) -> tuple[dict[str, float], str]:
    """Coefficients that the kernel or else the firmware declares, and which of the two."""
    cpus = [c for group in members.values() for c in group]
    if topology.reference not in members:
        return {}, ""
    if CAPACITY.differs(cpus):
        source = CAPACITY
    elif PERF.differs(cpus) and all(
        # Linear in speed. AMD's is a ranking, those of others are unknown.
        c.model.vendor == "GenuineIntel" or c.model.implementer is not None
        for c in cpus
    ):
        source = PERF
    else:
        return {}, ""
    lowest = {t.name: source.lowest(members[t.name]) for t in topology.core_types}
    values = list(lowest.values())
    if values != sorted(values) or values[-1] < values[0] * SPEED_GAP:
        return {}, ""  # types that another source divides cannot be equally fast
    reference = lowest[topology.reference]
    return {name: value / reference for name, value in lowest.items()}, source.name


def with_types(topology: Topology, types: Sequence[CoreType]) -> Topology:
    """The topology with these core types, and warnings about their coefficients."""
    stale = set(_warnings(topology.core_types))
    kept = tuple(w for w in topology.warnings if w not in stale)
    return replace(topology, core_types=tuple(types), warnings=kept + _warnings(types))


def _warnings(types: Sequence[CoreType]) -> tuple[str, ...]:
    declared = [t.name for t in types if t.coefficient_source == PERF.name]
    missing = [t.name for t in types if t.coefficient is None]
    warnings = []
    if declared:
        warnings.append(
            f"the coefficient of {', '.join(declared)} is declared by the firmware, not measured: "
            "run 'amp-nova calibrate'"
        )
    if missing:
        warnings.append(
            f"no trustworthy source gives the coefficient of {', '.join(missing)}: run 'amp-nova "
            "calibrate' or set it in [topology] core_type"
        )
    return tuple(warnings)
