# SPDX-License-Identifier: Apache-2.0
"""SMT siblings and busy factors that the operator declares.

A virtual machine may show its pCPUs as separate cores although two of them are threads of one core
of the physical machine. ``[topology] siblings`` declares these, one line for each core.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from amp_nova.exceptions import ConfigInvalid
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology

LEAST_FACTOR = 0.1
HALF = 0.5
"""Two threads of a core do at least the work of one, so this is a bound and no estimate."""


def declare(topology: Topology, lines: Sequence[str]) -> Topology:
    """The topology with these cores, each a line such as ``0-1``; other pCPUs stay as detected.

    Raises:
        ConfigInvalid: a line is not a list of pCPUs, names an unknown pCPU or one of another line,
            or joins pCPUs of two core types.
    """
    threads: dict[int, tuple[int, ...]] = {}
    here = {p.id: p for p in topology.pcpus}
    for line in lines:
        try:
            core = cpulist.parse(line)
        except ValueError as exc:
            raise _wrong(line, f"{exc}: write the pCPUs of one core, such as 0-1") from exc
        if unknown := set(core) - here.keys() - set(topology.offline):
            every = cpulist.show({*here, *topology.offline})
            raise _wrong(line, f"this machine has no pCPU {min(unknown)}, it has {every}")
        if twice := threads.keys() & set(core):
            raise _wrong(line, f"pCPU {min(twice)} is in another line: name it once")
        types = sorted({here[p].core_type for p in core if p in here})
        if len(types) > 1:
            raise _wrong(line, f"its pCPUs are of core types {' and '.join(types)}: split the line")
        threads |= dict.fromkeys(core, tuple(p for p in core if p in here))
    pcpus = tuple(
        replace(p, siblings=threads.get(p.id, tuple(s for s in p.siblings if s not in threads)))
        for p in topology.pcpus
    )
    most = {
        t.name: max((len(p.siblings) for p in pcpus if p.core_type == t.name), default=1)
        for t in topology.core_types
    }
    types_ = tuple(replace(t, threads_per_core=max(1, most[t.name])) for t in topology.core_types)
    return replace(topology, core_types=types_, pcpus=pcpus) if lines else topology


def with_factors(topology: Topology, lines: Sequence[str]) -> Topology:
    """The topology with these factors, each a line ``CORE_TYPE FACTOR``, instead of measured ones.

    Raises:
        ConfigInvalid: a line does not name a core type of this host and a factor from 0.1 to 1.
    """
    factors: dict[str, float] = {}
    for line in lines:
        name, _, text = line.strip().partition(" ")
        names = [t.name for t in topology.core_types]
        if name not in names or name in factors:
            raise ConfigInvalid(
                f"[topology] smt_busy_factor = {line} is not valid: begin with one of the core "
                f"types {', '.join(names)}, each in one line"
            )
        try:
            factors[name] = float(text)
        except ValueError:
            factors[name] = math.nan
        if not LEAST_FACTOR <= factors[name] <= 1.0:
            raise ConfigInvalid(
                f"[topology] smt_busy_factor = {line} is not valid: give a number from "
                f"{LEAST_FACTOR:g} to 1 after the core type"
            )
    types = tuple(
        replace(t, smt_busy_factor=factors.get(t.name, t.smt_busy_factor))
        for t in topology.core_types
    )
    return replace(topology, core_types=types)


def assumed(topology: Topology) -> Topology:
    """The topology with ``HALF`` where a sibling's cost was neither measured nor declared.

    A warning names these core types.
    """
    names = [
        t.name
        for t in topology.core_types
        if t.threads_per_core > 1 and t.smt_busy_factor is None and topology.pcpus_of(t.name)
    ]
    if not names:
        return topology
    types = [
        replace(t, smt_busy_factor=HALF) if t.name in names else t for t in topology.core_types
    ]
    sentence = (
        f"it is not known what a busy sibling costs on {', '.join(names)}, so a thread beside one "
        "counts as half a core: run 'amp-nova calibrate' or set [topology] smt_busy_factor"
    )
    return replace(topology, core_types=tuple(types), warnings=(*topology.warnings, sentence))


def _wrong(line: str, why: str) -> ConfigInvalid:
    return ConfigInvalid(f"[topology] siblings = {line} is not valid: {why}")
