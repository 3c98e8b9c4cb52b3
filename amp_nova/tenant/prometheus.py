# SPDX-License-Identifier: Apache-2.0
"""Queries Prometheus for the figures of one server: by a deadline, and no more than needed."""

import logging
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec

from amp_nova.prometheus import Prometheus
from amp_nova.tenant.figures import Series, figures, on_host, queries

LOG = logging.getLogger(__name__)
QUERIES_MAX = 8
"""Servers whose figures are queried at the same time."""
QUERY_S = 2.0
"""How long Prometheus may take: an answer that is too late for one request serves the next."""
ANSWER_S = 0.2
"""How long a request waits: it delays a guest's start, and Nova gives up after some seconds."""
CACHE_S = 3.0
"""How long figures are reused: they change with each scrape, which is seldom more often."""
ANSWER_BYTES_MAX = 4 << 20


class ServerFigures:
    """Figures of servers; ``settings``: the options of ``[vendordata]``."""

    def __init__(self, settings: Any) -> None:
        self._prometheus = Prometheus(settings.prometheus_url)
        self._workers = ThreadPoolExecutor(QUERIES_MAX, "prometheus")
        self._cache: dict[tuple[str, str, str], tuple[float, Future[dict[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._failed = False

    def figures(self, server: str, project: str, host_id: str = "") -> dict[str, Any]:
        """Figures with their age and source; empty if there are none, or none in time.

        ``host_id``: as in ``on_host``.
        """
        answer, failure = self._answer(server, project, host_id), None
        try:
            failure = answer.exception(ANSWER_S)
        except (TimeoutError, CancelledError) as exc:
            failure = exc
        if failure and not self._failed:
            LOG.warning("answers are empty: Prometheus failed: %r", failure)
        self._failed = bool(failure)
        values = {} if failure else dict(answer.result())
        if values:
            values["age_s"] = round(max(0.0, time.time() - values.pop("measured_s")), 1)
        return values

    def _answer(self, server: str, project: str, host_id: str) -> Future[dict[str, Any]]:
        """The pending answer or the last one; concurrent requests share it."""
        now_s, key = time.monotonic(), (server, project, host_id)
        with self._lock:
            for old, (at_s, future) in list(self._cache.items()):  # oldest first
                if now_s - at_s < CACHE_S:
                    break
                future.cancel()
                del self._cache[old]
            if key not in self._cache:
                self._cache[key] = now_s, self._workers.submit(self._figures, *key)
            return self._cache[key][1]

    def _figures(self, server: str, project: str, host_id: str) -> dict[str, Any]:
        samples, coefficients = queries(server, project)
        found = on_host(self._query(samples), host_id, project)
        values = figures(found, self._query(coefficients))
        if values:
            at = datetime.fromtimestamp(values["measured_s"], UTC).isoformat(timespec="seconds")
            values |= {"source": "prometheus", "measured_at": at}
        return values

    def _query(self, expression: str) -> list[Series]:
        found = self._prometheus.query("query", QUERY_S, ANSWER_BYTES_MAX, query=expression)
        return msgspec.convert(found, list[Series])
