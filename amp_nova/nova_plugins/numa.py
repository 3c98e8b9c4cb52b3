"""The pCPUs of the NUMA cells to which Nova pins a guest (``hw:numa_nodes``, large pages).

Nova reads flavor and image and puts the result into the request; here Nova's own function selects
the cells of a host. It decides again on the host, and may choose other cells if another guest with
a NUMA topology has arrived there meanwhile.
"""

from dataclasses import replace
from typing import Any

from nova import objects
from nova.virt import hardware

from amp_nova.scheduling.demands import Request


def dedicated(spec_obj: Any) -> bool:
    """Whether a request asks for dedicated CPUs, as all real-time and mixed guests do."""
    topology = spec_obj.numa_topology
    return topology is not None and any(cell.pcpuset for cell in topology.cells)


def on_host(host: Any, spec_obj: Any, request: Request) -> Request | None:
    """The request as it is on this host, with the pCPUs of the cells that Nova will choose.

    ``None`` if no cells of this host suit the guest.
    """
    if spec_obj.numa_topology is None or not request.vcpus:
        return request
    candidates = getattr(host, "allocation_candidates", None) or [{"mappings": {}}]
    requests = spec_obj.pci_requests
    placed = hardware.numa_fit_instance_to_host(
        host.numa_topology,
        spec_obj.numa_topology.obj_clone(),  # Nova changes it
        limits=host.limits.get("numa_topology")
        or objects.NUMATopologyLimits(
            cpu_allocation_ratio=host.cpu_allocation_ratio,
            ram_allocation_ratio=host.ram_allocation_ratio,
        ),
        pci_requests=requests.requests if requests else None,
        pci_stats=host.pci_stats,
        provider_mapping=candidates[0]["mappings"],
    )
    if placed is None:
        return None
    pcpus = {cell.id: frozenset(cell.cpuset) for cell in host.numa_topology.cells}
    allowed = {vcpu: pcpus[cell.id] for cell in placed.cells for vcpu in cell.cpuset}
    return replace(request, pcpus=tuple(allowed[v.index] for v in request.vcpus))
