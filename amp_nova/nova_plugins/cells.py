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

    def query(self, question: Callable[[Any, str], T]) -> dict[str, T]:
        """The answers by the cell's UUID; cells that failed or are silent are left out.

        ``question`` gets the context of a cell and its UUID. Raises what the API database
        raises.
        """
        answers: dict[str, T] = {}
        admin = nova.context.get_admin_context()
        cells = nova.objects.CellMappingList.get_all(admin)
        for cell in cells:
            before = self._asked.get(cell.uuid)
            if before is None or not before.is_alive():
                asked = threading.Thread(
                    target=_ask, args=(cell, question, answers), name="amp-cell", daemon=True
                )
                self._asked[cell.uuid] = asked
                asked.start()
        end = time.monotonic() + ANSWER_S
        for cell in cells:
            self._asked[cell.uuid].join(max(0.0, end - time.monotonic()))
        return dict(answers)  # a late answer must not change it


def _ask(cell: Any, question: Callable[[Any, str], T], answers: dict[str, T]) -> None:
    try:
        with nova.context.target_cell(nova.context.get_admin_context(), cell) as context:
            answers[cell.uuid] = question(context, cell.uuid)
    except Exception as exc:  # noqa: BLE001 - whatever Nova's database raises
        LOG.warning("cell %s cannot be asked about instances: %s", cell.uuid, exc)
