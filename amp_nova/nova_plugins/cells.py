"""Asks all of Nova's cells the same question; a cell that does not answer delays no other.

Nova's own ``scatter_gather`` has one pool of threads for everyone, which a silent cell fills, and a
list of cells that a new cell enters only when the service restarts.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import nova.context
import nova.objects

LOG = logging.getLogger(__name__)
T = TypeVar("T")
ANSWER_S = 5.0
"""How long an answer is waited for."""


class Cells:
    """At most one question is under way in each cell, so a silent cell takes one thread."""

    def __init__(self) -> None:
        self._asked: dict[str, threading.Thread] = {}
        self._failing: set[str] = set()

    def query(self, question: Callable[[Any, str], T]) -> dict[str, T]:
        """The answers by the cell's UUID; cells that failed or are silent are left out.

        ``question`` gets the context of a cell and its UUID. Raises what the API database raises.
        Waits for ``ANSWER_S``, but not again for a cell that has not answered the last question.
        """
        answers: dict[str, T] = {}
        errors: dict[str, object] = {}
        cells = nova.objects.CellMappingList.get_all(nova.context.get_admin_context())
        asked = []
        for cell in cells:
            before = self._asked.get(cell.uuid)
            if before is None or not before.is_alive():
                args = (cell, question, answers, errors)
                thread = threading.Thread(target=_ask, args=args, name="amp-cell", daemon=True)
                self._asked[cell.uuid] = thread
                asked.append(thread)
                thread.start()
        end = time.monotonic() + ANSWER_S
        for thread in asked:
            thread.join(max(0.0, end - time.monotonic()))
        found = dict(answers)  # a late answer must not change it
        for uuid in {cell.uuid for cell in cells} - found.keys() - self._failing:
            why = errors.get(uuid, f"no answer within {ANSWER_S:g} s")
            LOG.warning("cell %s cannot be asked about instances: %s", uuid, why)
        self._failing = {cell.uuid for cell in cells} - found.keys()
        return found


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
