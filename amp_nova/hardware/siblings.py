# SPDX-License-Identifier: Apache-2.0
"""What a busy sibling costs: as calibrated, as the operator declares, or as little as assumed."""

from collections.abc import Sequence
from dataclasses import replace

from amp_nova.hardware.operator_types import ConfiguredType
from amp_nova.model.topology import Topology

HALF = 0.5
"""Two threads of a core do at least the work of one, so this is a bound and no estimate."""


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
