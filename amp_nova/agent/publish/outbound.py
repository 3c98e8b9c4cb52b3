"""What the agent tells the rest of the cloud: reports to the schedulers, inventories to Placement.

Either is there when it is configured. Both work in threads of their own, from the newest cycle.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from amp_nova.agent.cycle import Cycle, CycleReport
from amp_nova.exceptions import ConfigInvalid, HypervisorUnavailable
from amp_nova.flavor.placement_resources import providers
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology


class Outbound:
    """Takes every cycle's report; begins at the first one, when the host's name is known."""

    def __init__(self, conf: cfg.ConfigOpts, hostname: Callable[[], str]) -> None:
        self._conf = conf
        self._hostname = hostname
        self._bookable = _bookable(conf.nova.cpu_shared_set)
        self._node: str | None = conf.nova.hypervisor_hostname
        self._last: Callable[[], CycleReport] | None = None
        self._offered: object = None
        self._about: Any = None
        self._publisher: Any = None
        self._inventory: Any = None
        self._transport: Any = None
        self._placement: Any = None
        # Both libraries are slow to import, and not there where they are not needed.
        if conf.reports.transport_url:
            with warnings.catch_warnings():
                # What the bus's own libraries will do without one day is no news for operators.
                warnings.simplefilter("ignore")
                from amp_nova.agent.publish import host_reports

            self._transport = host_reports.connect(conf)
        if conf.placement.enabled:
            from amp_nova.agent.publish import placement

            self._placement = placement.connect(conf)

    def tell(
        self,
        cycle: Cycle,
        report: Callable[[], CycleReport],
        counters: str | None = None,
        policy: str = "none",
    ) -> None:
        """Pass on what a cycle found, which ``report`` tells when needed; returns at once."""
        first, self._last = self._last is None or self._node is None, report
        if first:
            self._start()
        if self._publisher is not None:
            if (self._about.counters, self._about.policy) != (counters, policy):
                self._about = replace(self._about, counters=counters, policy=policy)
            self._publisher.offer(report, self._about, promises=cycle.promises)
        if self._inventory is not None and self._node is not None:
            self._stock(self._node, cycle.topology, counts_ips=counters is not None)

    def _stock(self, node: str, topology: Topology, *, counts_ips: bool) -> None:
        """Offer Placement what there is now, if that may be something else than before."""
        if self._offered == (topology, counts_ips):
            return
        self._offered = (topology, counts_ips)
        bookable = frozenset(p.id for p in topology.pcpus)
        if self._bookable is not None:
            bookable &= self._bookable
        reserve_ratio = self._conf.agent.reserve_ratio
        self._inventory.offer(
            providers(node, topology, bookable, reserve_ratio, counts_ips=counts_ips)
        )

    def unwell(self) -> None:
        """Say that the hypervisor cannot be reached: what is known of the host is getting old."""
        if self._publisher is not None and self._last is not None:
            self._publisher.offer(self._last, self._about, healthy=False)

    def stop(self) -> None:
        """End what was started."""
        for part in (self._publisher, self._inventory):
            if part is not None:
                part.stop()

    def _start(self) -> None:
        if self._transport is None and self._placement is None:
            return
        try:
            self._node = self._node or self._hostname()
        except HypervisorUnavailable:
            return
        if self._transport is not None:
            from amp_nova.agent.publish import host_reports

            self._about = host_reports.About(
                self._node, self._bookable, self._conf.agent.reserve_ratio
            )
            self._publisher = host_reports.Publisher(self._conf, self._node, self._transport)
            self._publisher.start()
        if self._placement is not None:
            from amp_nova.agent.publish import placement

            self._inventory = placement.Inventory(self._placement, self._node)
            self._inventory.start()


def _bookable(text: str | None) -> frozenset[int] | None:
    """The pCPUs of ``[nova] cpu_shared_set``; ``None``, all of them, if it is unset."""
    if text is None:
        return None
    try:
        return cpulist.parse_cpuset(text) if text.strip() else frozenset()
    except ValueError as exc:
        raise ConfigInvalid(
            f"[nova] cpu_shared_set = {text} is not valid: {exc}; write what nova.conf has"
        ) from exc
