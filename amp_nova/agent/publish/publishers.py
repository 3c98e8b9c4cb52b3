# SPDX-License-Identifier: Apache-2.0
"""Passes cycles to everyone who uses them: Prometheus, the schedulers, and Placement."""

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from amp_nova.agent.cycle import Cycle
from amp_nova.agent.io_work import IoDomain
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.host_info import (
    CalibrationStatus,
    HostInfo,
    shared_pcpus,
    unclaimed_refcores,
)
from amp_nova.agent.publish.host_warnings import host_warnings
from amp_nova.agent.publish.web_server import WebServer
from amp_nova.agent.threads import HelperThread
from amp_nova.exceptions import HypervisorUnavailable
from amp_nova.flavor.placement_resources import providers
from amp_nova.hardware.effective_speed import bookable_refcores, for_admission
from amp_nova.http_server import HttpServer
from amp_nova.model.topology import Topology

if TYPE_CHECKING:
    from amp_nova.agent.publish.host_reports import Publisher

LOG = logging.getLogger(__name__)
NOT_COUNTED = "none"


class Publishers:
    """Passes on the record of every cycle."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        hostname: Callable[[], str],
        calibrated: Callable[[Topology], CalibrationStatus],
        source: str | None,
    ) -> None:
        """Build all publishers; raises ``ConfigInvalid`` if one is not configured correctly.

        ``hostname``: returns the host's name, as Nova knows it; ``calibrated``: returns when the
        calibration in use was made, and how exact it is; ``source``: what is expected to count
        instructions before there is a guest.
        """
        self._options = conf.exporter
        self.reports = bool(conf.reports.transport_url)
        """Whether schedulers hear of this host."""
        self._calibrated = calibrated
        self._source = source
        self._topology: Topology | None = None
        self.exporter = Exporter(reuse_s=conf.agent.cycle_s, detail=conf.exporter.detail)
        self.outbound = Outbound(conf, hostname)
        self.exporter.admits = self.outbound.admits
        self._web = WebServer(self.exporter.routes, conf.exporter)
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
        """Publish the status of the threads; ``False`` if one of them hangs."""
        threads = [self._served] if self._options.enabled else []
        threads += self.outbound.threads
        self.exporter.agent.threads = tuple(threads)
        return not any(thread.hangs for thread in threads)

    def unavailable(self) -> None:
        """Publish that the hypervisor has never answered."""
        self.exporter.agent.hypervisor_up = False
        self.exporter.changed()

    def _serve(self) -> None:
        """The work of the exporter's thread."""
        bound: list[HttpServer] = []
        if not self._served.persist(lambda: bound.append(self._web.bind()), "no metrics"):
            return
        (server,) = bound
        address, port = server.bind_addr
        LOG.info("page at %s://%s:%d/, metrics at /metrics", self._web.scheme, address, port)

        def beat() -> bool:
            self._served.success()
            return self._served.beat()

        self._web.run(server, beat)

    def publish(
        self, cycle: Cycle, counting: Mapping[tuple[str, str], int], io: tuple[IoDomain, ...] | None
    ) -> None:
        """Pass on a cycle, and the last report on I/O work.

        ``counting``: how many vCPUs each source counts, by source and remark.
        """
        agent = self.exporter.agent
        found = host_warnings(cycle, agent.threads, reports=self.reports)
        for warning in found:
            if warning not in agent.warnings and warning.about != "reports_fail":
                LOG.warning(warning.sentence)  # its thread logs the other
        agent.warnings = found
        if cycle.topology != self._topology:
            self._topology = cycle.topology
            agent.calibration = self._calibrated(cycle.topology)
        for source, about in counting.keys() - agent.counters.keys():
            if about:
                LOG.warning("counters of vCPUs (%s): %s", source, about)
        if counting:
            sources = sorted({source for source, _ in counting} - {NOT_COUNTED})
            self._source = "+".join(sources) or None
        agent.counters = counting
        self.outbound.publish(cycle, self._source, healthy=agent.hypervisor_up is not False)
        self.exporter.io = io
        self.exporter.update(cycle)


class Outbound:
    """Sends every cycle to schedulers and Placement, from the first in which the host has a name.

    Both are optional, and run in threads of their own. Only what is configured is imported:
    oslo.messaging and keystoneauth need not be installed, and an agent that sends nothing uses less
    memory.
    """

    def __init__(self, conf: cfg.ConfigOpts, hostname: Callable[[], str]) -> None:
        self._conf = conf
        self._hostname = hostname
        bookable, agent = shared_pcpus(conf.nova.cpu_shared_set), conf.agent
        self.admits = HostInfo("", bookable, agent.reserve_ratio, smt=agent.smt)
        """What may be booked on this host, without the host's name, which is not known yet."""
        self._transport: Any = None
        self._placement: Any = None
        self._info: HostInfo | None = None
        self._publisher: Publisher | None = None
        self._inventory: Any = None
        self.threads: list[HelperThread] = []
        """The publishing threads that have been started."""
        if conf.reports.transport_url:
            with warnings.catch_warnings():
                # Deprecation warnings of the bus libraries are of no use to operators.
                warnings.simplefilter("ignore")
                from amp_nova.agent.publish import host_reports

            self._transport = host_reports.connect(conf)
        if conf.placement.enabled:
            from amp_nova.agent.publish import placement

            self._placement = placement.connect(conf)

    def publish(self, cycle: Cycle, counters: str | None = None, *, healthy: bool = True) -> None:
        """Publish a cycle; does not block.

        ``counters``: what counts instructions. ``healthy``: whether the hypervisor answers; if not,
        the cycle is about the domains that it listed last.
        """
        self._info = info = self._info or self._start()
        if info is None:
            return
        if self._publisher is not None:
            self._publisher.offer(cycle, info, healthy)
        if self._inventory is not None:
            topology = for_admission(cycle.topology, info.smt)
            capacity = bookable_refcores(topology, info.bookable_of(cycle.observation))
            self._inventory.offer(
                providers(
                    info.node,
                    capacity,
                    info.reserve_ratio,
                    counters is not None,
                    unclaimed_refcores(cycle),
                )
            )

    def stop(self) -> None:
        """Stop publishing; schedulers and Placement keep what they have."""
        for thread in self.threads:
            thread.stop()

    def _start(self) -> HostInfo | None:
        """Start what is configured, once the host's name is known."""
        if self._transport is None and self._placement is None:
            return None
        try:
            node = self._conf.nova.hypervisor_hostname or self._hostname()
        except HypervisorUnavailable:
            return None
        if self._transport is not None:
            from amp_nova.agent.publish.host_reports import MessageBus, Publisher, scheduler_probe

            bus = MessageBus(self._transport, node)
            self._publisher = Publisher(self._conf.reports, node, bus)
            self.threads += [self._publisher, scheduler_probe(bus)]
        if self._placement is not None:
            from amp_nova.agent.publish.placement import Inventory

            self._inventory = Inventory(self._placement, node)
            self.threads.append(self._inventory)
        for thread in self.threads:
            thread.start()
        return replace(self.admits, node=node)
