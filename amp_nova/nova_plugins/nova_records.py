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
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

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
T = TypeVar("T")
ANSWER_S = 5.0
"""How long to wait for a cell's answer."""
SILENT_S = 30.0
"""How long a cell that failed is not asked. Nova's threads wait for it, and the scheduler's own
queries need them."""
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
        self._lock = threading.RLock()
        self._nodes: Mapping[str, str] = {}
        """The names of compute nodes by the UUID of their provider."""
        self._read_s = -math.inf

    def read(self) -> None:
        """Read the compute nodes; raises what the client raises."""
        with self._lock:
            self._read_s = self._clock()
            # Nova gives its nodes this trait, so the providers that agents create are not listed.
            listed = self._get("/resource_providers?required=COMPUTE_NODE")["resource_providers"]
            self._nodes = {each["uuid"]: each["name"] for each in listed}

    def __call__(self, node: str) -> bool:
        """Whether Nova has this host; ``False`` for a new one while Placement does not answer."""
        if node not in self._nodes.values():
            with self._lock:
                if self._clock() - self._read_s >= REREAD_S:
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


class NovaRecords:
    """What Nova's databases say of instances."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._silent_until_s: dict[str, float] = {}
        """Until when each cell that failed is not asked again: its threads may still wait."""

    def find(self, pending: Collection[str], since: datetime | None) -> "Found":
        """The instances that are ``pending``, unless ``since`` is ``None`` also all that arrive.

        And those that were changed since then: a report may be as old. Raises what Nova's API
        database and the client of Placement raise.
        """
        admin = nova.context.get_admin_context()
        instances: dict[str, NovaInstance | None] = dict.fromkeys(pending)
        mappings: dict[str, Any] = {}
        in_cell: dict[str, list[str]] = {}
        for each in nova.objects.InstanceMappingList.get_by_instance_uuids(admin, [*pending]):
            if each.cell_mapping is None:
                uuid = each.instance_uuid
                instances[uuid] = _in_no_cell(admin, uuid, self._placement)
            else:
                mappings[each.cell_mapping.uuid] = each.cell_mapping
                in_cell.setdefault(each.cell_mapping.uuid, []).append(each.instance_uuid)
        asked = mappings.values()
        if since is not None:
            asked = nova.objects.CellMappingList.get_all(admin)
            for each in nova.objects.InstanceMappingList.get_by_cell_id(admin, None):
                if (uuid := each.instance_uuid) not in instances:
                    instances[uuid] = _in_no_cell(admin, uuid, self._placement)

        def question(context: Any) -> tuple[dict[str, NovaInstance], float]:
            began_s = time.thread_time()
            uuids = in_cell.get(context.cell_uuid, ())
            return _in_a_cell(context, uuids, since, self._placement), time.thread_time() - began_s

        answers = self._ask(asked, question)
        for cell in in_cell.keys() - answers.keys():
            for uuid in in_cell[cell]:
                del instances[uuid]
        for answer, _ in answers.values():
            instances.update(answer)
        return Found(instances, frozenset(answers), sum(cpu_s for _, cpu_s in answers.values()))

    def _ask(self, cells: Collection[Any], question: Callable[[Any], T]) -> dict[str, T]:
        """The answers by the cell's UUID; Nova logs why others are left out."""
        now_s = time.monotonic()
        asked = [cell for cell in cells if self._silent_until_s.get(cell.uuid, 0.0) <= now_s]
        admin = nova.context.get_admin_context()
        found = nova.context.scatter_gather_cells(admin, asked, ANSWER_S, question)
        failed = {u for u, f in found.items() if nova.context.is_cell_failure_sentinel(f)}
        self._silent_until_s |= dict.fromkeys(failed, now_s + SILENT_S)
        return {uuid: answer for uuid, answer in found.items() if uuid not in failed}


class Found(NamedTuple):
    """Instances, of the cells that answered; ``cpu_s``: the CPU time that their answers took."""

    instances: NovaInstances
    cells: frozenset[str]
    cpu_s: float


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
                found[each.uuid] = NovaInstance({each.node: ()}, *_progress(each))
    return found


def _progress(instance: Any) -> tuple[bool, bool]:
    """Whether Nova is ``busy`` with an instance, and whether it is ``settled``."""
    task, state = instance.task_state, instance.vm_state
    return task is not None or state in UNFINISHED, task is None and state != vm_states.BUILDING


def _arriving(context: Any, instance: Any, placement: Placement) -> NovaInstance:
    """An instance in a cell, with what it needs on the hosts that Placement has for it."""
    task, (busy, settled) = instance.task_state, _progress(instance)
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
        return NovaInstance({}, busy, settled)
    needs = {instance.node: [before]} if instance.node else {}
    needs = {each.source_node: [before] for each in moves} or needs
    for node in {instance.node} - {None} if settled else placement.nodes_of(instance.uuid):
        needs.setdefault(node, []).append(after)
    return NovaInstance(needs, busy, settled)


def _request(flavor: Any) -> ReportedInstance:
    """What a flavor books; nothing if it is not valid."""
    booking, _ = read_booking(flavor.extra_specs, flavor.vcpus)
    return demands.request_of(booking) if booking is not None else ReportedInstance("")
