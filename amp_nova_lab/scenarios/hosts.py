# SPDX-License-Identifier: Apache-2.0
"""The host of a scenario: core types, pCPUs, hardware threads and clocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova_lab.scenarios.document import GREATEST, Keys, Place, Positive, Text, one_of

PCPUS_MAX = 4096
RATE_LEAST, RATE_MOST = 1e-3, 1e3
"""Bounds of coefficients, speeds and instructions per cycle that keep counters finite."""
Rate = Annotated[float, Meta(ge=RATE_LEAST, le=RATE_MOST)]
CLOCK_HZ = 1e9
"""Calibrated clock of the reference core on a host whose clocks change."""
STEP_MIN_S = 0.001
"""Minimum length of a phase and of the work between two barriers: each costs an event."""
Step = Annotated[float, Meta(ge=STEP_MIN_S, le=GREATEST)]


class ClockPhase(Keys, frozen=True):
    """How long a core type runs at this ratio of its calibrated clock."""

    for_s: Step
    clock_ratio: Annotated[float, Meta(ge=0.05, le=5)]


class CoreTypeKeys(Keys, frozen=True, kw_only=True):
    """A core type; ``count``: of pCPUs. By default siblings cost nothing."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
    count: Annotated[int, Meta(ge=1, le=PCPUS_MAX)]
    coefficient: Rate
    llc: list[Annotated[int, Meta(ge=0, le=1 << 31)]] | None = None
    threads_per_core: Annotated[int, Meta(ge=1, le=8)] = 1
    smt_busy_factor: Annotated[float, Meta(ge=0.1, le=1)] | None = None
    clock: Annotated[list[ClockPhase], Meta(min_length=1)] | None = None


class HostKeys(Keys, frozen=True, kw_only=True):
    """A host; ``kernel``: whether it knows which pCPUs are fast."""

    core_types: Annotated[list[CoreTypeKeys], Meta(min_length=1)]
    reference: Text | None = None
    reference_ips: Positive | None = None
    kernel: Annotated[str, one_of("blind", "prefer_fast")] = "blind"


Clocks = Mapping[str, Sequence[ClockPhase]]
"""The clock phases of core types, by name, repeated indefinitely."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of a host beside its topology."""

    clocks: Clocks = field(default_factory=dict)
    kernel: str = "blind"
    """Or ``prefer_fast``."""
    other_ratio: float = 0.0
    """Share of each pCPU that processes other than vCPUs use."""


def read(keys: HostKeys, at: Place) -> tuple[Topology, Machine]:
    """The topology of a host, and its other properties."""
    types: dict[str, CoreType] = {}
    caches: list[tuple[str, int]] = []
    for number, each in enumerate(keys.core_types):
        here = at["core_types"][number]
        if each.name in types:
            raise here.wrong(f"core type '{each.name}' is given twice")
        if len(caches) + each.count > PCPUS_MAX:
            raise here["count"].wrong(
                f"the host has more than {PCPUS_MAX} pCPUs: reduce the counts"
            )
        types[each.name] = _core_type(each, here, keys.reference_ips)
        caches += [(each.name, llc) for llc in each.llc or [0] * each.count]
    if keys.reference is not None:
        _check_reference(keys.reference, at["reference"], types)
    clocks = {each.name: each.clock for each in keys.core_types if each.clock}
    machine = Machine(clocks, keys.kernel)
    return topology(types, caches, keys.reference), machine


def topology(
    types: Mapping[str, CoreType], caches: Sequence[tuple[str, int]], reference: str | None
) -> Topology:
    """A host with these core types; by default the slowest is the reference.

    ``caches``: core type and last-level cache of each pCPU, those of one type side by side.
    Hardware threads of a core are neighbours in the numbering.
    """
    slowest_first = tuple(sorted(types.values(), key=lambda t: t.coefficient or 0.0))
    first = {llc: number for number, (_, llc) in reversed(list(enumerate(caches)))}
    pcpus: list[PCpu] = []
    for pcpu, (name, llc) in enumerate(caches):
        core = pcpus[-1].siblings if pcpus else ()
        if pcpu not in core:
            core = tuple(range(pcpu, pcpu + types[name].threads_per_core))
        pcpus.append(PCpu(pcpu, name, core, llc=first[llc]))
    return Topology(slowest_first, tuple(pcpus), reference or slowest_first[0].name, "scenario")


def _check_reference(name: str, at: Place, types: Mapping[str, CoreType]) -> None:
    """The reference core type is one with coefficient 1, or one of another host."""
    core_type = types.get(name)
    if core_type is None and any(t.coefficient == 1.0 for t in types.values()):
        raise at.refused(
            f"a core type of the host: {', '.join(types)}; for that of another host, no core type "
            "here may have coefficient 1"
        )
    if core_type is not None and core_type.coefficient != 1.0:
        raise at.wrong(
            f"'{name}' is the reference core type, so its coefficient is 1 by definition, "
            f"not {core_type.coefficient:g}"
        )


def _core_type(keys: CoreTypeKeys, at: Place, reference_ips: float | None) -> CoreType:
    count, threads = keys.count, keys.threads_per_core
    if keys.llc is not None and len(keys.llc) != count:
        raise at["llc"].wrong(f"{at.path}.llc has {len(keys.llc)} ids for {count} cores")
    if count % threads:
        raise at["threads_per_core"].wrong(
            f"{count} pCPUs are not a multiple of {threads} threads per core: change the count"
        )
    if keys.smt_busy_factor is not None and threads == 1:
        raise at["smt_busy_factor"].wrong(
            f"{at.path}.smt_busy_factor needs siblings: give threads_per_core as well"
        )
    ips = None if reference_ips is None else reference_ips * keys.coefficient
    clock_hz = CLOCK_HZ * keys.coefficient if keys.clock else None
    return CoreType(
        keys.name,
        keys.coefficient,
        "scenario",
        threads,
        ips,
        smt_busy_factor=keys.smt_busy_factor,
        clock_hz=clock_hz,
        clock_calibrated=clock_hz is not None,
    )
