"""Best-effort instances that run one parallel program (``amp:parallel``).

The threads of such a program wait for each other, so a fast core adds nothing while the others run
on slow ones. The vCPUs of an instance therefore stay on core types that have a pCPU for each of
them (chen2014 section 2.2, principle 1), and fast cores serve those that gain from them.
"""

from collections.abc import Mapping, Sequence

from amp_nova.control.homes import Instance
from amp_nova.model.topology import Topology


def places(instances: Sequence[Instance], topology: Topology) -> Mapping[str, frozenset[int]]:
    """The pCPUs for each parallel instance, by UUID; instances that may use all are left out.

    Empty if these pCPUs are too few for all vCPUs of these instances: a pCPU that two of them share
    would cost more than a fast core for one of them wastes.
    """
    pcpus = [topology.pcpus_of(t.name) for t in topology.core_types]
    found, vcpus = {}, 0
    for instance in instances:
        if not instance.booking.parallel or instance.booking.booked or not instance.vcpus:
            continue
        there = [ids for some in pcpus if (ids := some & instance.vcpus[0].allowed)]
        enough = [ids for ids in there if len(ids) >= len(instance.vcpus)]
        if enough and len(enough) < len(there):
            found[instance.resource] = frozenset().union(*enough)
            vcpus += len(instance.vcpus)
    return found if vcpus <= len(frozenset().union(*found.values())) else {}
