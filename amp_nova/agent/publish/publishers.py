"""Passes cycles to everyone who uses them: Prometheus, the schedulers, and Placement."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Protocol

from oslo_config import cfg

from amp_nova.agent.cycle import Cycle
from amp_nova.agent.helper_threads import Heartbeat, HelperThread, supervise
from amp_nova.agent.io_work import IoReport
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.metrics import Calibrated
from amp_nova.agent.publish.outbound import Outbound
from amp_nova.agent.publish.web_server import Server, Settings, WebServer
from amp_nova.exceptions import ConfigInvalid
from amp_nova.model.topology import Topology

LOG = logging.getLogger(__name__)
NOT_COUNTED = "none"


class Hypervisor(Protocol):
    """What is published about the connection to libvirt."""

    @property
    def calls(self) -> int:
        """Number of calls made."""
        ...

    @property
    def available(self) -> bool:
        """Whether the last call was answered."""
        ...

    def hostname(self) -> str:
        """The host's name, as Nova knows it."""
        ...


class Publishers:
    """Passes on the record of every cycle."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        hypervisor: Hypervisor,
        calibrated: Callable[[Topology], Calibrated],
        source: str | None,
    ) -> None:
        """Build all publishers; raises ``ConfigInvalid`` if one is not configured correctly.

        ``calibrated``: returns when the calibration in use was made, and how exact it is;
        ``source``: what is expected to count instructions before there is a guest.
        """
        self._options, self._hypervisor = conf.exporter, hypervisor
        self._calibrated = calibrated
        self._source = source
        self._topology: Topology | None = None
        self.exporter = Exporter(reuse_s=conf.agent.cycle_s)
        self.outbound = Outbound(conf, hypervisor.hostname)
        self.exporter.admits = self.outbound.admits
        if conf.exporter.web_config_file:  # or metrics would be served without its protection
            raise ConfigInvalid(
                f"[exporter] web_config_file = {conf.exporter.web_config_file} is not supported: "
                "remove it, and set cert_file, key_file and client_ca_file"
            )
        names = [f.name for f in fields(Settings)]
        settings = Settings(**{name: conf.exporter[name] for name in names})
        self._web = WebServer(self.exporter.routes, settings)
        self._served = HelperThread("exporter", self._serve)

    def serve(self) -> None:
        """Start to serve metrics if enabled, as soon as the address is free."""
        if self._options.enabled:
            self._served.start()

    def stop(self) -> None:
        """Stop the threads that publish."""
        self._served.stop()
        self.outbound.stop()

    def supervise(self) -> bool:
        """Restart threads that ended or hang; ``False`` if that no longer helps."""
        threads = [self._served] if self._options.enabled else []
        threads += self.outbound.threads
        well = supervise(threads)
        self.exporter.agent.threads = tuple(thread.status for thread in threads)
        return well

    def unavailable(self) -> None:
        """Publish that the hypervisor does not answer, so that older data may be outdated."""
        self.exporter.agent.hypervisor_up = False
        self.exporter.changed()
        self.outbound.mark_unhealthy()

    def _serve(self, heartbeat: Heartbeat) -> None:
        """The work of the exporter's thread."""
        bound: list[Server] = []
        if not heartbeat.persist(lambda: bound.append(self._web.bind()), "no metrics"):
            return
        (server,) = bound
        address, port = server.bind_addr
        LOG.info("page at %s://%s:%d/, metrics at /metrics", self._web.scheme, address, port)

        def beat() -> bool:
            heartbeat.success()
            return heartbeat.beat()

        try:
            self._web.run(server, beat)
        finally:
            server.stop()

    def publish(
        self,
        cycle: Cycle,
        counting: Mapping[tuple[str, str], int],
        io: IoReport | None,
        late_s: float | None,
    ) -> None:
        """Pass on a cycle.

        Args:
            cycle: the record of the cycle.
            counting: how many vCPUs each source counts, by source and remark.
            io: the last report on I/O work.
            late_s: how late a periodic cycle began; ``None`` if an event started the cycle.
        """
        agent = self.exporter.agent
        if cycle.topology != self._topology:
            self._topology = cycle.topology
            for warning in cycle.topology.warnings:
                LOG.warning(warning)
            agent.calibration = self._calibrated(cycle.topology)
        for source, about in counting.keys() - agent.counters.keys():
            if about:
                LOG.warning("counters of vCPUs (%s): %s", source, about)
        if counting:
            found = sorted({source for source, _ in counting} - {NOT_COUNTED})
            self._source = "+".join(found) or None
        agent.counters = counting
        agent.hypervisor_up, agent.libvirt_calls = (
            self._hypervisor.available,
            self._hypervisor.calls,
        )
        if late_s is not None:
            agent.lateness_s = late_s
        self.exporter.io = io
        self.exporter.update(cycle)
        self.outbound.publish(cycle, self._source)
