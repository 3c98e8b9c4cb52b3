"""Serves the table of ``agent.publish.metrics`` to Prometheus, and the agent's page to people."""

import logging
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import Metric

from amp_nova.agent.cycle import Cycle
from amp_nova.agent.io_work import IoReport
from amp_nova.agent.publish import history, http, page
from amp_nova.agent.publish.history import History
from amp_nova.agent.publish.host_reports import HostInfo
from amp_nova.agent.publish.metrics import AgentStatus, families
from amp_nova.agent.publish.rows import Distribution
from amp_nova.exceptions import ConfigInvalid

LOG = logging.getLogger(__name__)


class Exporter:
    """A Prometheus collector of the last cycle; the service keeps ``agent`` and ``io`` current."""

    def __init__(
        self, registry: CollectorRegistry | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self.agent = AgentStatus(clock)
        self.io: IoReport | None = None
        self.admits: HostInfo | None = None
        self._cycle: Cycle | None = None
        self._history = History()
        self._shown: tuple[Cycle | None, int, bytes] = (None, 0, b"")
        """The page as it was last made: of which cycle, in which second."""
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def update(self, cycle: Cycle) -> None:
        """Count a successful cycle, and serve its record from now on."""
        stages = dict(self.agent.stages)  # a scrape may be reading the previous one
        for stage, took_s in cycle.stage_s.items():
            before = stages.get(stage, Distribution(0, 0.0))
            stages[stage] = Distribution(before.count + 1, before.total + took_s)
        self.agent.stages = stages
        self.agent.last_success_s = self.agent.clock()
        self._cycle = cycle
        try:
            self._history = history.advance(self._history, cycle, self.agent.clock())
        except Exception:  # control does not depend on what the page shows
            LOG.exception("the history of the page begins anew")
            self._history = History()

    def overview(self) -> bytes:
        """The agent's page, in UTF-8; made at most once a second, and for each cycle."""
        now_s, cycle = self.agent.clock(), self._cycle
        shown, second, body = self._shown
        if not body or shown is not cycle or second != int(now_s):
            view = page.View(
                (self.admits.node if self.admits else "") or platform.node(),
                version("amp-nova"),
                now_s,
                cycle,
                self._history,
                self.agent.last_success_s,
                self.agent.hypervisor_up,
                self.admits,
            )
            body = page.render(view).encode()
            self._shown = cycle, int(now_s), body
        return body

    def start_http(self, address: str, port: int) -> tuple[str, int]:
        """Serve over HTTP, on any free port if ``port`` is 0; returns the address and port in use.

        Raises:
            ConfigInvalid: the address cannot be bound.
        """
        try:
            return address, http.serve(self._application, address, port)
        except OSError as exc:
            raise ConfigInvalid(
                f"cannot serve metrics on {address}:{port} ({exc.strerror}): set another "
                "[exporter] address or port"
            ) from exc

    def _application(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """The page at ``/``, the metrics everywhere else."""
        if environ.get("PATH_INFO") != "/":
            served: Iterable[bytes] = make_wsgi_app(self.registry)(environ, start_response)
            return served
        body = self.overview()
        headers = {**page.HEADERS, "Content-Length": str(len(body))}
        start_response("200 OK", list(headers.items()))
        return [body]

    def collect(self) -> Iterator[Metric]:
        """Every metric (prometheus_client's ``Collector``)."""
        return families(self.agent, self._cycle, self.io, self.admits)
