"""What Nova says: the booking of a flavor, which hosts exist, and where pending instances are.

Placement says whether a host exists: every compute service registers its host there before it is
used, so neither a silent cell nor a new one matters. All cells are queried for instances at the
same time, and one that does not answer delays no other. Nova's own ``scatter_gather`` has one pool
of threads for everyone, which a silent cell fills, and a list of cells that a new cell enters only
when the service restarts.
"""

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import nova.context
import nova.objects
from nova.compute import task_states, vm_states
from nova.scheduler.client.report import report_client_singleton

from amp_nova.exceptions import sentence
from amp_nova.flavor.extra_specs import Booking, examine
from amp_nova.scheduling import demands
from amp_nova.scheduling.pending import NovaInstance, NovaInstances

LOG = logging.getLogger(__name__)
T = TypeVar("T")
ANSWER_S = 5.0
"""How long to wait for an answer."""
FORGET_S = 60.0
"""After this time a host that Nova did not have is looked up again."""
SILENT_S = 5.0
"""How long Placement is not queried after it did not answer."""
HOSTS_MAX = 1 << 16
"""At most this many hosts are remembered; the next one makes all others forgotten."""
UNVERIFIED_MAX = 1000
"""At most this many hosts may report that were never looked up, because Placement was silent."""
VERSION = "1.14"
"""The first in which Placement tells which provider is the root of a tree."""
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


@functools.lru_cache(maxsize=1024)
def _examine(specs: tuple[tuple[str, str], ...], vcpus: int) -> tuple[Booking | None, str]:
    booking, errors = examine(dict(specs), vcpus)
    return booking, sentence("; ".join(errors))


def read_booking(specs: Mapping[str, str], vcpus: int) -> tuple[Booking | None, str]:
    """The booking in a flavor's extra specs, or ``None`` and the errors in them; cached."""
    return _examine(tuple(sorted(specs.items())), vcpus)


def in_placement(node: str) -> bool:
    """Whether Placement has a compute node of this name.

    Raises what the client raises, and ``RuntimeError`` if Placement gives no usable answer.
    """
    answer = report_client_singleton().get(f"/resource_providers?name={quote(node)}", VERSION)
    if not answer:
        raise RuntimeError(f"Placement answered {answer.status_code}")
    providers = answer.json()["resource_providers"]
    # A provider below that of a host, as the agents create, is no host.
    return any(each["uuid"] == each["root_provider_uuid"] for each in providers)


class HostLookup:
    """Remembers the answers of ``search``."""

    def __init__(
        self,
        search: Callable[[str], bool] = in_placement,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._search = search
        self._clock = clock
        self._answers: dict[str, tuple[bool, float]] = {}
        """Whether Nova has a host, and until when on the clock this counts."""
        self._unverified: set[str] = set()
        self._silent_until_s = clock()
        self._failing = False

    def __call__(self, node: str) -> bool:
        """Whether Nova has this host; while Placement does not answer, whether it may report."""
        now_s = self._clock()
        exists, until_s = self._answers.get(node, (False, -math.inf))
        if now_s < until_s:
            return exists
        if now_s >= self._silent_until_s and (answer := self._answer(node)) is not None:
            self._unverified.discard(node)
            if len(self._answers) >= HOSTS_MAX:
                self._answers.clear()
            self._answers[node] = answer, math.inf if answer else now_s + FORGET_S
            return answer
        if len(self._unverified) < UNVERIFIED_MAX:
            self._unverified.add(node)
        return node in self._unverified

    def _answer(self, node: str) -> bool | None:
        """The answer of ``search``; ``None`` without one, which is logged once."""
        try:
            answer = self._search(node)
        except Exception as exc:  # noqa: BLE001 - whatever the client raises
            if not self._failing:
                LOG.warning(
                    "cannot look up reporting hosts in Placement: accept at most %d more: %s",
                    UNVERIFIED_MAX,
                    exc,
                )
            self._failing, self._silent_until_s = True, self._clock() + SILENT_S
            return None
        self._failing = False
        return answer


class Cells:
    """At most one query is under way in each cell, so a silent cell takes one thread."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}
        self._failing: set[str] = set()

    def query(self, question: Callable[[Any, str], T]) -> dict[str, T]:
        """The answers by the cell's UUID; cells that failed or are silent are left out.

        ``question`` gets the context of a cell and its UUID. Raises what the API database raises.
        Waits for ``ANSWER_S``, but not again for a cell that has not answered the last query.
        """
        answers: dict[str, T] = {}
        errors: dict[str, object] = {}
        cells = nova.objects.CellMappingList.get_all(nova.context.get_admin_context())
        threads = []
        for cell in cells:
            before = self._threads.get(cell.uuid)
            if before is None or not before.is_alive():
                args = (cell, question, answers, errors)
                thread = threading.Thread(target=_ask, args=args, name="amp-cell", daemon=True)
                self._threads[cell.uuid] = thread
                threads.append(thread)
                thread.start()
        end = time.monotonic() + ANSWER_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        in_time = dict(answers)  # a late answer must not change it
        for uuid in {cell.uuid for cell in cells} - in_time.keys() - self._failing:
            why = errors.get(uuid, f"no answer within {ANSWER_S:g} s")
            LOG.warning("cannot query the instances of cell %s: %s", uuid, why)
        self._failing = {cell.uuid for cell in cells} - in_time.keys()
        return in_time


def _ask(
    cell: Any,
    question: Callable[[Any, str], T],
    answers: dict[str, T],
    errors: dict[str, object],
) -> None:
    try:
        with nova.context.target_cell(nova.context.get_admin_context(), cell) as context:
            answers[cell.uuid] = question(context, cell.uuid)
    except Exception as exc:  # noqa: BLE001 - whatever Nova's database raises
        errors[cell.uuid] = exc


def find(cells: Cells, resources: Collection[str]) -> NovaInstances:
    """These instances in Nova's database, and all that are arriving on a host.

    Raises what Nova's API database raises. Instances of cells that do not answer are left out.
    """
    in_cell: dict[str, list[str]] = {}
    instances: dict[str, NovaInstance | None] = dict.fromkeys(resources)
    if resources:
        mappings = nova.objects.InstanceMappingList.get_by_instance_uuids(
            nova.context.get_admin_context(), list(resources)
        )
        for mapping in mappings:
            if mapping.cell_mapping is None:  # it is being scheduled for the first time
                instances[mapping.instance_uuid] = NovaInstance(None, busy=True)
            else:
                in_cell.setdefault(mapping.cell_mapping.uuid, []).append(mapping.instance_uuid)

    def question(context: Any, cell: str) -> dict[str, NovaInstance]:
        return _instances(context, in_cell.get(cell, ()))

    answers = cells.query(question)
    for cell, uuids in in_cell.items():
        if cell not in answers:
            for uuid in uuids:
                del instances[uuid]
    for answer in answers.values():
        instances.update(answer)
    return instances


def _instances(context: Any, uuids: Iterable[str]) -> dict[str, NovaInstance]:
    filters: list[dict[str, Any]] = [{"task_state": ARRIVING}]
    if uuids:
        filters.append({"uuid": list(uuids), "soft_deleted": True})
    instances = {}
    for each in filters:
        listed = nova.objects.InstanceList.get_by_filters(
            context, {"deleted": False, **each}, expected_attrs=["flavor"]
        )
        instances.update({instance.uuid: _instance(instance) for instance in listed})
    return instances


def _instance(instance: Any) -> NovaInstance:
    flavor = instance.flavor
    booking, _ = read_booking(flavor.extra_specs, flavor.vcpus)
    booked = booking is not None and booking.booked
    return NovaInstance(
        instance.node,
        busy=instance.task_state is not None or instance.vm_state in UNFINISHED,
        request=demands.request_of(booking) if booking is not None and booked else None,
    )
