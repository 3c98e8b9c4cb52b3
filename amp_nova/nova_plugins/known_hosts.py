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
UNKNOWN_MAX = 1000
"""At most this many unknown hosts are remembered; the next one makes all others forgotten."""
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
        self._failing = False

    def __call__(self, node: str) -> bool:
        """Whether Nova has this host; true for any host while Placement does not answer."""
        now_s = self._clock()
        if node in self._known:
            return True
        if now_s - self._unknown.get(node, -FORGET_S) < FORGET_S:
            return False
        try:
            found = self._search(node)
        except Exception as exc:  # noqa: BLE001 - whatever the client raises
            if not self._failing:
                LOG.warning("cannot look up reporting hosts in Placement; accept them all: %s", exc)
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
