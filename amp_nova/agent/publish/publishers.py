"""Passes cycles to everyone who uses them: Prometheus, the schedulers, and Placement."""

import logging
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

from oslo_config import cfg

from amp_nova.agent.cycle import Cycle
from amp_nova.agent.helper_threads import Heartbeat, HelperThread, supervise
from amp_nova.agent.io_work import IoReport
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.metrics import Calibrated
from amp_nova.agent.publish.outbound import Outbound
from amp_nova.agent.publish.web_server import WebServer, bind
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
        self._web = WebServer(self.exporter.routes, conf.exporter.web_config_file)
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
        found: list[socket.socket] = []
        address, port = self._options.address, self._options.port
        if not heartbeat.persist(lambda: found.append(bind(address, port)), "no metrics"):
            return
        taken = found[0].getsockname()[1]
        LOG.info("page at %s://%s:%d/, metrics at /metrics", self._web.scheme, address, taken)

        def beat() -> bool:
            heartbeat.success()
            return heartbeat.beat()

        self._web.run(found[0], beat)

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
