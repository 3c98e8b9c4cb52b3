"""Serves the table of ``agent.publish.metrics`` to Prometheus."""

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import Metric

from amp_nova.agent.cycle import Cycle
from amp_nova.agent.io_work import IoReport
from amp_nova.agent.publish import http
from amp_nova.agent.publish.host_reports import HostInfo
from amp_nova.agent.publish.metrics import AgentStatus, families
from amp_nova.agent.publish.rows import Distribution
from amp_nova.exceptions import ConfigInvalid


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

    def start_http(self, address: str, port: int) -> tuple[str, int]:
        """Serve over HTTP, on any free port if ``port`` is 0; returns the address and port in use.

        Raises:
            ConfigInvalid: the address cannot be bound.
        """
        try:
            return address, http.serve(make_wsgi_app(self.registry), address, port)
        except OSError as exc:
            raise ConfigInvalid(
                f"cannot serve metrics on {address}:{port} ({exc.strerror}): set another "
                "[exporter] address or port"
            ) from exc

    def collect(self) -> Iterator[Metric]:
        """Every metric (prometheus_client's ``Collector``)."""
        return families(self.agent, self._cycle, self.io, self.admits)
