"""What Nova's database says about instances that are pending on a host.

Two queries in each cell, both by indexed columns: the pending instances, and those that arrive on a
host without a decision of the filter (``az:host``, a retry, a decision before this worker began).
"""

from collections.abc import Collection, Iterable
from typing import Any

import nova.context
import nova.objects
from nova.compute import task_states, vm_states

from amp_nova.nova_plugins.cells import Cells
from amp_nova.nova_plugins.flavors import read_booking
from amp_nova.nova_plugins.pending import Found, NovaInstance
from amp_nova.scheduling import demands

ARRIVING = [
    task_states.BLOCK_DEVICE_MAPPING,
    task_states.NETWORKING,
    task_states.SPAWNING,
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
    task_states.RESIZE_FINISH,
]
"""Tasks during which an instance has its host in the database, and may not be in a report yet."""
UNFINISHED = {vm_states.BUILDING, vm_states.RESIZED}
"""States in which Nova may still need the capacity on another host than the instance's."""


def find(cells: Cells, resources: Collection[str]) -> Found:
    """These instances in Nova's database, and all that are arriving on a host.

    Raises what Nova's API database raises. Instances of cells that do not answer are left out.
    """
    in_cell: dict[str, list[str]] = {}
    found: dict[str, NovaInstance | None] = dict.fromkeys(resources)
    if resources:
        mappings = nova.objects.InstanceMappingList.get_by_instance_uuids(
            nova.context.get_admin_context(), list(resources)
        )
        for mapping in mappings:
            if mapping.cell_mapping is None:  # it is being scheduled for the first time
                found[mapping.instance_uuid] = NovaInstance(None, busy=True)
            else:
                in_cell.setdefault(mapping.cell_mapping.uuid, []).append(mapping.instance_uuid)

    def question(context: Any, cell: str) -> dict[str, NovaInstance]:
        return _instances(context, in_cell.get(cell, ()))

    answers = cells.query(question)
    for cell, uuids in in_cell.items():
        if cell not in answers:
            for uuid in uuids:
                del found[uuid]
    for answer in answers.values():
        found.update(answer)
    return found


def _instances(context: Any, uuids: Iterable[str]) -> dict[str, NovaInstance]:
    filters: list[dict[str, Any]] = [{"task_state": ARRIVING}]
    if uuids:
        filters.append({"uuid": list(uuids), "soft_deleted": True})
    found = {}
    for each in filters:
        listed = nova.objects.InstanceList.get_by_filters(
            context, {"deleted": False, **each}, expected_attrs=["flavor"]
        )
        found.update({instance.uuid: _instance(instance) for instance in listed})
    return found


def _instance(instance: Any) -> NovaInstance:
    flavor = instance.flavor
    booking, _ = read_booking(flavor.extra_specs, flavor.vcpus)
    booked = booking is not None and booking.booked
    return NovaInstance(
        instance.node,
        busy=instance.task_state is not None or instance.vm_state in UNFINISHED,
        request=demands.request_of(booking) if booking is not None and booked else None,
    )
