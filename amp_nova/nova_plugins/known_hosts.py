"""Checks whether Nova has a host; the reports of any other host are refused.

Placement is asked when a host reports for the first time: every compute service registers its host
there before it is used. So neither a silent cell nor a new one matters.
"""

import logging
import time
from collections.abc import Callable
from urllib.parse import quote

from nova.scheduler.client.report import report_client_singleton

LOG = logging.getLogger(__name__)
FORGET_S = 60.0
"""After this time a host that Nova did not have is looked up again."""
SILENT_S = 5.0
"""After Placement did not answer, it is not asked for so long."""
UNKNOWN_MAX = 1000
"""At most this many unknown hosts are remembered; the next one makes all others forgotten."""
UNVERIFIED_MAX = 1000
"""At most this many hosts may report that were never looked up, because Placement was silent."""
KNOWN_MAX = 1 << 16
"""At most this many known hosts are remembered; the next one makes all others forgotten."""
VERSION = "1.14"
"""The first in which Placement tells which provider is the root of a tree."""


def in_placement(node: str) -> bool:
    """Whether Placement has a compute node of this name.

    Raises what the client raises, and ``RuntimeError`` if Placement gives no usable answer.
    """
    answer = report_client_singleton().get(f"/resource_providers?name={quote(node)}", VERSION)
    if not answer:
        raise RuntimeError(f"Placement answered {answer.status_code}")
    found = answer.json()["resource_providers"]
    # A provider below that of a host, as the agents create, is no host.
    return any(each["uuid"] == each["root_provider_uuid"] for each in found)


class KnownHosts:
    """Remembers the answers of ``search``."""

    def __init__(
        self,
        search: Callable[[str], bool] = in_placement,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._search = search
        self._clock = clock
        self._known: set[str] = set()
        self._unknown: dict[str, float] = {}
        self._unverified: set[str] = set()
        self._silent_until_s = clock()
        self._failing = False

    def __call__(self, node: str) -> bool:
        """Whether Nova has this host; while Placement does not answer, whether it may report."""
        now_s = self._clock()
        if node in self._known:
            return True
        if now_s - self._unknown.get(node, -FORGET_S) < FORGET_S:
            return False
        if now_s < self._silent_until_s:
            return self._accept_unverified(node)
        try:
            found = self._search(node)
        except Exception as exc:  # noqa: BLE001 - whatever the client raises
            if not self._failing:
                LOG.warning(
                    "cannot look up reporting hosts in Placement: accept at most %d more: %s",
                    UNVERIFIED_MAX,
                    exc,
                )
            self._failing, self._silent_until_s = True, self._clock() + SILENT_S
            return self._accept_unverified(node)
        self._failing = False
        self._unverified.discard(node)
        if found:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known.add(node)
            self._unknown.pop(node, None)
            return True
        if len(self._unknown) >= UNKNOWN_MAX:
            self._unknown.clear()
        self._unknown[node] = now_s
        return False

    def _accept_unverified(self, node: str) -> bool:
        if len(self._unverified) < UNVERIFIED_MAX:
            self._unverified.add(node)
        return node in self._unverified
