# SPDX-License-Identifier: Apache-2.0
"""Serves the metrics of ``agent.publish.metrics`` to Prometheus, and the agent's page to people."""

import gzip
import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from amp_nova.agent.cycle import Cycle
from amp_nova.agent.io_work import IoDomain
from amp_nova.agent.publish import page, snapshot
from amp_nova.agent.publish.host_info import AgentStatus, Distribution, HostInfo
from amp_nova.agent.publish.metrics import HostSeries
from amp_nova.agent.publish.snapshot import History
from amp_nova.agent.publish.web_server import Page, Route

_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    """A Prometheus collector for the last cycle; the service keeps ``agent`` and ``io`` current.

    However many clients ask, the page and the metrics are rendered once per cycle, or once per
    ``reuse_s`` seconds while no cycle ends.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.time,
        reuse_s: float = 1.0,
        detail: str = "instance",
    ) -> None:
        """``detail``: the level of ``metrics.DETAILS`` up to which there are series."""
        self.registry = registry or CollectorRegistry()
        self.agent = AgentStatus(clock)
        self.io: tuple[IoDomain, ...] | None = None
        self.admits: HostInfo | None = None
        self._reuse_s = reuse_s
        self._series = HostSeries(detail)
        self._cycle: Cycle | None = None
        self._history = History()
        self._rendered: dict[Callable[[], Page], tuple[float, Page]] = {}
        self._rendering = threading.Lock()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    @property
    def routes(self) -> dict[str, Route]:
        """What is served under each path."""
        return {"/": self.front, "/metrics": lambda: self._reused(self._metrics)}

    def update(self, cycle: Cycle) -> None:
        """Count a successful cycle, and serve its record from now on."""
        stages = dict(self.agent.stages)  # a scrape may be reading the previous one
        for stage, took_s in cycle.stage_s.items():
            before = stages.get(stage, Distribution(0, 0.0))
            stages[stage] = Distribution(before.count + 1, before.total + took_s)
        self.agent.stages = stages
        self.agent.last_success_s = self.agent.clock()
        self._cycle = cycle
        self.changed()
        self._history = snapshot.advance(self._history, cycle, self.agent.clock())

    def changed(self) -> None:
        """Discard what was rendered, so that the next request renders it again."""
        self._rendered = {}

    def front(self) -> Page:
        """The agent's page, with its HTTP headers."""
        return self._reused(self._page)

    def _reused(self, render: Callable[[], Page]) -> Page:
        """What was rendered before, unless that is too old."""
        with self._rendering:  # clients that ask at the same time wait for one rendering
            rendered = self._rendered  # a cycle that ends meanwhile replaces it
            at_s, made = rendered.get(render, (0.0, None))
            now_s = time.monotonic()
            if made is None or now_s - at_s > self._reuse_s:
                made = render()
                rendered[render] = now_s, made
            return made

    def collect(self) -> Iterator[Metric]:
        """Every metric (prometheus_client's ``Collector``)."""
        return self._series.families(self.agent, self._cycle, self.io, self.admits)

    def _page(self) -> Page:
        view = page.View(self.agent, self.agent.clock(), self._cycle, self._history, self.admits)
        return Page(page.render(view).encode(), "text/html; charset=utf-8")

    def _metrics(self) -> Page:
        return Page(gzip.compress(generate_latest(self.registry)), _FORMAT, gzipped=True)
