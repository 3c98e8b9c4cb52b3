# SPDX-License-Identifier: Apache-2.0
"""SMT siblings and busy factors that the operator declares with core types.

A virtual machine may show its pCPUs as separate cores although two of them are threads of one core
of the physical machine.
"""

from collections.abc import Sequence
from dataclasses import replace

from amp_nova.hardware.operator_types import ConfiguredType
from amp_nova.model.topology import Topology

HALF = 0.5
"""Two threads of a core do at least the work of one, so this is a bound and no estimate."""


def declare(topology: Topology, lines: Sequence[ConfiguredType]) -> Topology:
    """The topology with the threads of each core that the operator declares."""
    threads = {line.name: line.threads for line in lines if line.threads}
    online = {p.id for p in topology.pcpus}
    cores: dict[int, tuple[int, ...]] = {}
    for line in lines:
        for first in range(0, len(line.cpus), line.threads) if line.threads else ():
            core = line.cpus[first : first + threads[line.name]]
            cores |= dict.fromkeys(core, tuple(p for p in core if p in online))
    return replace(
        topology,
        pcpus=tuple(replace(p, siblings=cores.get(p.id, p.siblings)) for p in topology.pcpus),
        core_types=tuple(
            replace(t, threads_per_core=threads.get(t.name, t.threads_per_core))
            for t in topology.core_types
        ),
    )


def with_factors(topology: Topology, lines: Sequence[ConfiguredType]) -> Topology:
    """The topology with the declared busy factors instead of measured ones, or ``HALF``.

    A warning names the core types of which nobody measured or declared it.
    """
    factors = {line.name: line.smt_busy_factor for line in lines if line.smt_busy_factor}
    types, assumed = [], []
    for t in topology.core_types:
        factor = factors.get(t.name, t.smt_busy_factor)
        if factor is None and t.threads_per_core > 1 and topology.pcpus_of(t.name):
            factor = HALF
            assumed.append(t.name)
        types.append(replace(t, smt_busy_factor=factor))
    warnings = topology.warnings
    if assumed:
        sentence = (
            f"it is not known what a busy sibling costs on {', '.join(assumed)}, so a thread "
            "beside one counts as half a core: run 'amp-nova calibrate' or add smt=FACTOR to "
            "[topology] core_type"
        )
        warnings = (*warnings, sentence)
    return replace(topology, core_types=tuple(types), warnings=warnings)
