# SPDX-License-Identifier: Apache-2.0
"""What Nova says: the booking of a flavor, which hosts exist, and where instances are or arrive.

Placement has the destination of a boot or move from the moment in which a scheduler claims it, and
Nova's database has it much later, so Placement is asked for that. All cells are queried at the same
time.
"""

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

import nova.context
import nova.objects
from nova.compute import task_states, vm_states
from nova.exception import BuildRequestNotFound, FlavorNotFound, InstanceMappingNotFound
from nova.scheduler.client.report import report_client_singleton

from amp_nova.exceptions import sentence
from amp_nova.flavor.extra_specs import Booking, examine
from amp_nova.scheduling import demands
from amp_nova.scheduling.pending import NovaInstance, NovaInstances
from amp_nova.wire.host_report import ReportedInstance

LOG = logging.getLogger(__name__)
ANSWER_S = 5.0
"""How long to wait for a cell's answer."""
REREAD_S = 10.0
"""Least time between two looks for a host that Placement did not have."""
VERSION = "1.18"
"""The first in which Placement's list of providers can be restricted to those with a trait."""
RESIZING = {
    task_states.RESIZE_PREP,
    task_states.RESIZE_MIGRATING,
    task_states.RESIZE_MIGRATED,
    task_states.RESIZE_FINISH,
    task_states.RESIZE_REVERTING,
}
ARRIVING = {
    task_states.SCHEDULING,
    task_states.BLOCK_DEVICE_MAPPING,
    task_states.NETWORKING,
    task_states.SPAWNING,
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
    task_states.MIGRATING,
    task_states.UNSHELVING,
    *RESIZING,
}
"""Tasks during which an instance may have capacity on a host whose report does not show it yet."""
UNFINISHED = {vm_states.BUILDING, vm_states.RESIZED}
"""States in which the same is true without a task."""
MOVING = {"pre-migrating", "migrating", "post-migrating", "finished", "reverting"}
"""States of a migration by which its source still needs the capacity that it had."""


@functools.lru_cache(maxsize=1024)
def _examine(specs: tuple[tuple[str, str], ...], vcpus: int) -> tuple[Booking | None, str]:
    booking, errors = examine(dict(specs), vcpus)
    return booking, sentence("; ".join(errors))


def read_booking(specs: Mapping[str, str], vcpus: int) -> tuple[Booking | None, str]:
    """The booking in a flavor's extra specs, or ``None`` and the errors in them; cached."""
    return _examine(tuple(sorted(specs.items())), vcpus)


def _get(path: str) -> Any:
    """Placement's answer; raises what the client raises, and ``RuntimeError`` if it is an error."""
    answer = report_client_singleton().get(path, VERSION)
    if not answer:
        raise RuntimeError(f"Placement answered {answer.status_code}")
    return answer.json()


class Placement:
    """The compute nodes in Placement, and on which of them it has an instance; thread-safe."""

    def __init__(
        self, get: Callable[[str], Any] = _get, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._get = get
        self._clock = clock
        self._nodes: Mapping[str, str] = {}
        """The names of compute nodes by the UUID of their provider."""
        self._read_s = -math.inf

    def read(self) -> None:
        """Read the compute nodes; raises what the client raises."""
        self._read_s = self._clock()
        # Nova gives its nodes this trait, so the providers that agents create are not listed.
        listed = self._get("/resource_providers?required=COMPUTE_NODE")["resource_providers"]
        self._nodes = {each["uuid"]: each["name"] for each in listed}

    def __call__(self, node: str) -> bool:
        """Whether Nova has this host; ``False`` for a new one while Placement does not answer."""
        if node not in self._nodes.values() and self._clock() - self._read_s >= REREAD_S:
            try:
                self.read()
            except Exception as exc:  # noqa: BLE001 - whatever the client raises
                LOG.warning("cannot look up host %s in Placement: %s", node, exc)
        return node in self._nodes.values()

    def nodes_of(self, resource: str) -> set[str]:
        """The nodes on which an instance has allocations; raises what the client raises."""
        providers = self._get(f"/allocations/{resource}")["allocations"].keys()
        if providers and not providers & self._nodes.keys():
            self.read()
        return {self._nodes[each] for each in providers & self._nodes.keys()}


def find(
    placement: Placement, pending: Collection[str], since: datetime | None
) -> tuple[NovaInstances, frozenset[str]]:
    """The instances that are ``pending``, and the cells that answered: others are left out.

    Unless ``since`` is ``None`` also all that arrive, and those that were changed since then: a
    report may be as old. Nova logs why a cell is silent. Raises what Nova's API database and the
    client of Placement raise.
    """
    admin = nova.context.get_admin_context()
    instances: dict[str, NovaInstance | None] = dict.fromkeys(pending)
    asked: dict[str, Any] = {}
    cell_of: dict[str, str] = {}
    for each in nova.objects.InstanceMappingList.get_by_instance_uuids(admin, [*pending]):
        if each.cell_mapping is None:
            uuid = each.instance_uuid
            instances[uuid] = _in_no_cell(admin, uuid, placement)
        else:
            asked[each.cell_mapping.uuid] = each.cell_mapping
            cell_of[each.instance_uuid] = each.cell_mapping.uuid
    if since is not None:
        asked = {each.uuid: each for each in nova.objects.CellMappingList.get_all(admin)}
        for each in nova.objects.InstanceMappingList.get_by_cell_id(admin, None):
            if (uuid := each.instance_uuid) not in instances:
                instances[uuid] = _in_no_cell(admin, uuid, placement)

    def question(context: Any) -> dict[str, NovaInstance]:
        there = [uuid for uuid, cell in cell_of.items() if cell == context.cell_uuid]
        return _in_a_cell(context, there, since, placement)

    answers = nova.context.scatter_gather_cells(admin, [*asked.values()], ANSWER_S, question)
    answered = {c for c, a in answers.items() if not nova.context.is_cell_failure_sentinel(a)}
    for uuid, cell in cell_of.items():
        if cell not in answered:
            del instances[uuid]
    for cell in answered:
        instances.update(answers[cell])
    return instances, frozenset(answered)


def _in_no_cell(context: Any, uuid: str, placement: Placement) -> NovaInstance | None:
    """An instance that was in no cell: until then it has a build request, or was deleted.

    A list of build requests would fail if a single one cannot be read.
    """
    with contextlib.suppress(BuildRequestNotFound):
        built = nova.objects.BuildRequest.get_by_instance_uuid(context, uuid)
        need = _request(built.instance.flavor)
        nodes = placement.nodes_of(uuid) if need.vcpus else ()
        return NovaInstance(dict.fromkeys(nodes, (need,)), busy=True)
    with contextlib.suppress(InstanceMappingNotFound):
        mapping = nova.objects.InstanceMapping.get_by_instance_uuid(context, uuid)
        return None if mapping.cell_mapping is None else NovaInstance(busy=True)  # by now it is
    return None


def _in_a_cell(
    context: Any, pending: Collection[str], since: datetime | None, placement: Placement
) -> dict[str, NovaInstance]:
    there = nova.objects.InstanceList.get_by_filters
    found = {}
    if since is not None:
        arriving = {"task_state": list(ARRIVING)}, {"vm_state": list(UNFINISHED)}
        for which in (*arriving, {"changes-since": since}):
            for each in there(context, {"deleted": False, **which}, expected_attrs=["flavor"]):
                if each.uuid not in found:
                    found[each.uuid] = _arriving(context, each, placement)
    if pending:
        # Not their flavors, which take most of the time: what they book was decided.
        wanted = {"deleted": False, "soft_deleted": True, "uuid": pending}
        for each in there(context, wanted, expected_attrs=[]):
            if each.uuid not in found:
                found[each.uuid] = NovaInstance({each.node: ()}, _busy(each))
    return found


def _busy(instance: Any) -> bool:
    """Whether Nova is working on an instance, or waits for a resize to be confirmed."""
    return instance.task_state is not None or instance.vm_state in UNFINISHED


def _arriving(context: Any, instance: Any, placement: Placement) -> NovaInstance:
    """An instance in a cell, with what it needs on the hosts that Placement has for it."""
    task, busy = instance.task_state, _busy(instance)
    resizing = instance.vm_state == vm_states.RESIZED or task in RESIZING
    before, after = _request(instance.old_flavor or instance.flavor), _request(instance.flavor)
    moves: Collection[Any] = ()
    if resizing:
        filters = {"instance_uuid": instance.uuid, "status": list(MOVING)}
        moves = nova.objects.MigrationList.get_by_filters(context, filters)
    if resizing and instance.new_flavor is not None:
        after = _request(instance.new_flavor)
    elif task == task_states.RESIZE_PREP:
        # The destination has not begun: the instance, and maybe its request, have the old flavor.
        for each in moves:
            with contextlib.suppress(FlavorNotFound):
                flavor = nova.objects.Flavor.get_by_id(context, each.new_instance_type_id)
                after = _request(flavor)
    if not (before.vcpus or after.vcpus):
        return NovaInstance({}, busy)
    needs = {instance.node: [before]} if instance.node else {}
    needs = {each.source_node: [before] for each in moves} or needs
    resting = task is None and instance.vm_state != vm_states.BUILDING
    for node in {instance.node} - {None} if resting else placement.nodes_of(instance.uuid):
        needs.setdefault(node, []).append(after)
    return NovaInstance(needs, busy)


def _request(flavor: Any) -> ReportedInstance:
    """What a flavor books; nothing if it is not valid."""
    booking, _ = read_booking(flavor.extra_specs, flavor.vcpus)
    return demands.request_of(booking) if booking is not None else ReportedInstance("")
