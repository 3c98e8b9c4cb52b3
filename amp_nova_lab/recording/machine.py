# SPDX-License-Identifier: Apache-2.0
"""The host of a recording, as a scenario has it."""

from dataclasses import replace
from typing import Any

from amp_nova.exceptions import TopologyUnknown
from amp_nova.model.topology import CoreType, Topology
from amp_nova_lab.counters import reference_ips


def bookable(topology: Topology, pcpus: frozenset[int] | None) -> Topology:
    """The same machine with only the pCPUs that instances may use, and their core types.

    ``pcpus=None`` means all that are online; raises ``TopologyUnknown`` if there are none.
    """
    online = frozenset(p.id for p in topology.pcpus)
    kept = topology.with_online(online if pcpus is None else online & pcpus)
    if kept is None:
        raise TopologyUnknown(
            "none of the pCPUs in [nova] cpu_shared_set is online: copy the value from nova.conf"
        )
    there = {p.core_type for p in kept.pcpus}
    types = tuple(t for t in topology.core_types if t.name in there)
    return replace(kept, core_types=types, offline=(), known=())


def check(topology: Topology) -> None:
    """Raise ``TopologyUnknown`` if a scenario cannot describe the host."""
    for core_type in topology.core_types:
        if core_type.coefficient is None:
            raise TopologyUnknown(
                f"the coefficient of core type '{core_type.name}' is not known, and a scenario "
                "needs it: run amp-nova calibrate, or declare it in [topology] core_type"
            )


def host(topology: Topology, notes: list[str]) -> dict[str, Any]:
    """The value of the key ``host``; adds to ``notes`` what a scenario cannot express."""
    keys: dict[str, Any] = {}
    ones = [t.name for t in topology.core_types if t.coefficient == 1.0]
    if topology.reference in ones or not ones:
        keys["reference"] = topology.reference
    keys["core_types"] = [_core_type(topology, t, notes) for t in topology.core_types]
    if (ips := reference_ips(topology)) is not None:
        keys["reference_ips"] = round(ips)
    return keys


def _core_type(topology: Topology, core_type: CoreType, notes: list[str]) -> dict[str, Any]:
    """One core type; siblings become neighbours in the numbering."""
    by_id = {p.id: p for p in topology.pcpus if p.core_type == core_type.name}
    cores = sorted({tuple(sorted({p.id, *p.siblings})) for p in by_id.values()})
    pcpus = [by_id[pcpu] for core in cores for pcpu in core]
    threads = len(cores[0])
    keys: dict[str, Any] = {
        "name": core_type.name,
        "count": len(pcpus),
        "coefficient": round(core_type.coefficient or 0.0, 6),
        "llc": [p.llc or 0 for p in pcpus],
    }
    if any(len(core) != threads for core in cores):
        notes.append(
            f"Some cores of type {core_type.name} have fewer usable hardware threads than others; "
            "all count as cores without siblings."
        )
    elif threads > 1:
        keys["threads_per_core"] = threads
        if core_type.smt_busy_factor is not None and 0.1 <= core_type.smt_busy_factor <= 1.0:
            keys["smt_busy_factor"] = round(core_type.smt_busy_factor, 4)
        else:
            notes.append(
                f"What a busy sibling costs on core type {core_type.name} is not calibrated; "
                "siblings count as costing nothing."
            )
    return keys
