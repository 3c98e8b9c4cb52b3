"""The part of the agent's page that shows the pCPUs by core type, and who runs on them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from amp_nova.agent.cycle import Cycle, DomainRecord, VcpuRecord
from amp_nova.agent.publish.charts import text
from amp_nova.model import cpulist
from amp_nova.model.topology import CoreType, PCpu, Topology


class Occupant(NamedTuple):
    """A vCPU on a pCPU; ``cores``: the share that it books, ``None`` for best effort."""

    name: str
    cores: float | None


def section(cycle: Cycle, domains: Sequence[DomainRecord]) -> str:
    """The section that shows every online pCPU, fastest core type first."""
    topology = cycle.topology
    on, roaming = _occupants(topology, domains)
    parts = []
    for core_type in reversed(topology.core_types):
        parts.append(_heading(topology, core_type, roaming.get(core_type.name, [])))
        pcpus = [p for p in topology.pcpus if p.core_type == core_type.name]
        cells = "".join(_pcpu(p, on.get(p.id, [])) for p in pcpus)
        parts.append(f'<div class="pcpus">{cells}</div>')
    if anywhere := roaming.get("", []):
        parts.append(f'<p class="type">On several core types: {_names(anywhere)}</p>')
    if topology.offline:
        parts.append(f'<p class="quiet">Offline: pCPUs {cpulist.show(topology.offline)}</p>')
    return f"<section><h2>Cores, and who runs on them</h2>{''.join(parts)}</section>"


def _occupants(
    topology: Topology, domains: Sequence[DomainRecord]
) -> tuple[Mapping[int, list[Occupant]], Mapping[str, list[str]]]:
    """vCPUs by the pCPU they last ran on, or else were packed onto; the others by core type.

    A vCPU that may run on several core types is listed under the empty name.
    """
    on: dict[int, list[Occupant]] = defaultdict(list)
    roaming: dict[str, list[str]] = defaultdict(list)
    for domain in domains:
        for vcpu in domain.vcpus:
            name = f"{domain.domain.display_name or domain.domain.name}/{vcpu.reading.index}"
            pcpu = _place(vcpu)
            if pcpu is not None:
                on[pcpu].append(Occupant(name, vcpu.entitlement.home.cores))
            else:
                core_type = topology.only_type(vcpu.reading.pcpus)
                roaming[core_type.name if core_type else ""].append(name)
    return on, roaming


def _place(vcpu: VcpuRecord) -> int | None:
    reading, home = vcpu.reading, vcpu.entitlement.home
    if reading.last_pcpu is not None and reading.last_pcpu in reading.pcpus:
        return reading.last_pcpu
    return home.pcpu if home.pcpu in reading.pcpus else None


def _heading(topology: Topology, core_type: CoreType, roaming: Sequence[str]) -> str:
    pcpus = topology.pcpus_of(core_type.name)
    said = f"pCPUs {cpulist.show(pcpus)}" if pcpus else "all offline"
    if core_type.coefficient is not None:
        said += f", coefficient {core_type.coefficient:g}"
    also = f"; anywhere on these: {_names(roaming)}" if roaming else ""
    return (
        f'<p class="type"><b>{text(core_type.name)}</b> <span class="quiet">{said}{also}</span></p>'
    )


def _names(names: Sequence[str], most: int = 30) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return text(", ".join(names[:most])) + more


def _pcpu(pcpu: PCpu, occupants: Sequence[Occupant]) -> str:
    booked = [o for o in occupants if o.cores is not None]
    bars = "".join(f'<i style="width:{min(1.0, o.cores or 0.0):.1%}"></i>' for o in booked)
    rows = "".join(
        f'<li><span title="{text(o.name)}">{text(o.name)}</span>'
        f'<span class="quiet">{"best effort" if o.cores is None else f"{o.cores:.0%}"}</span></li>'
        for o in occupants
    )
    others = [s for s in pcpu.siblings if s != pcpu.id]
    shares = f" sibling {cpulist.show(others)}" if others else ""
    return (
        f'<div class="pcpu"><b>{pcpu.id}</b><span class="quiet">{shares}'
        f'{"" if occupants else " free"}</span><div class="bar">{bars}</div><ul>{rows}</ul></div>'
    )
