"""Checks whether Nova has a host; the reports of any other host are refused.

The names are looked up in Nova's cells when a host reports for the first time.
"""

import logging
import time
from collections.abc import Callable

import nova.context
import nova.objects

LOG = logging.getLogger(__name__)
FORGET_S = 60.0
"""After this time a host that Nova did not have is looked up again."""
UNKNOWN_MAX = 1000
"""At most this many unknown hosts are remembered; the next one makes all others forgotten."""


def in_nova(node: str) -> bool:
    """Whether a compute node of this name is in any cell.

    Raises what Nova's database raises, and ``RuntimeError`` if a cell that may have it is silent.
    """
    found = nova.context.scatter_gather_all_cells(
        nova.context.get_admin_context(),
        nova.objects.ComputeNodeList.get_by_hypervisor,
        node,
    )
    answers = [a for a in found.values() if not nova.context.is_cell_failure_sentinel(a)]
    # Nova matches parts of names.
    if any(compute.hypervisor_hostname == node for nodes in answers for compute in nodes):
        return True
    if not answers or len(answers) < len(found):
        raise RuntimeError(f"{len(found) - len(answers)} of {len(found)} cells did not answer")
    return False


class KnownHosts:
    """Remembers the answers of ``search``."""

    def __init__(
        self,
        search: Callable[[str], bool] = in_nova,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._search = search
        self._clock = clock
        self._known: set[str] = set()
        self._unknown: dict[str, float] = {}
        self._failing = False

    def __call__(self, node: str) -> bool:
        """Whether Nova has this host; true for any host while Nova's database does not answer."""
        now_s = self._clock()
        if node in self._known:
            return True
        if now_s - self._unknown.get(node, -FORGET_S) < FORGET_S:
            return False
        try:
            found = self._search(node)
        except Exception as exc:  # noqa: BLE001 - whatever Nova's database raises
            if not self._failing:
                LOG.warning("cannot look up reporting hosts in Nova, so accept them all: %s", exc)
            self._failing = True
            return True
        self._failing = False
        if found:
            self._known.add(node)
            self._unknown.pop(node, None)
            return True
        if len(self._unknown) >= UNKNOWN_MAX:
            self._unknown.clear()
        self._unknown[node] = now_s
        return False
