"""What the agent sends to the cloud: host reports to schedulers, inventories to Placement.

Both are optional, run in threads of their own, and publish the latest cycle.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from amp_nova.agent.cycle import Cycle
from amp_nova.agent.helper_threads import HelperThread
from amp_nova.agent.publish.capacity import unclaimed_refcores
from amp_nova.agent.publish.host_info import HostInfo
from amp_nova.exceptions import ConfigInvalid, HypervisorUnavailable
from amp_nova.flavor.placement_resources import providers
from amp_nova.hardware.effective_speed import bookable_refcores, for_admission
from amp_nova.model import cpulist
from amp_nova.policies.parameters import PER_VCPU

if TYPE_CHECKING:
    from amp_nova.agent.publish.host_reports import Publisher


class Outbound:
    """Publishes every cycle, starting with the first in which the host's name is known.

    It imports only what is configured: oslo.messaging and keystoneauth need not be installed, and
    an agent that publishes nothing uses less memory.
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
        if conf.reports.transport_url:
            with warnings.catch_warnings():
                # Deprecation warnings of the bus libraries are of no use to operators.
                warnings.simplefilter("ignore")
                from amp_nova.agent.publish import message_bus

            self._transport = message_bus.connect(conf)
        if conf.placement.enabled:
            from amp_nova.agent.publish import placement

            self._placement = placement.connect(conf)

    def publish(self, cycle: Cycle, counters: str | None = None) -> None:
        """Publish a cycle; ``counters``: what counts instructions. Does not block."""
        known = self._info or self._start()
        if known is None:
            return
        policy = _policy(self._conf.agent, cycle.policy)
        self._info = info = replace(known, counters=counters, policy=policy)
        if self._publisher is not None:
            self._publisher.offer(cycle, info)
        if self._inventory is not None:
            topology = for_admission(cycle.topology, info.smt)
            capacity = bookable_refcores(topology, info.bookable_of(topology))
            self._inventory.offer(
                providers(
                    info.node,
                    capacity,
                    info.reserve_ratio,
                    counters is not None,
                    unclaimed_refcores(cycle),
                )
            )

    def mark_unhealthy(self) -> None:
        """Report that the hypervisor does not answer, so that the last report may be outdated."""
        if self._publisher is not None:
            self._publisher.mark_unhealthy()

    @property
    def threads(self) -> list[HelperThread]:
        """The publishing threads that have been started."""
        return [part.thread for part in (self._publisher, self._inventory) if part is not None]

    def stop(self) -> None:
        """Stop publishing; schedulers and Placement keep what they have."""
        for part in (self._publisher, self._inventory):
            if part is not None:
                part.stop()

    def _start(self) -> HostInfo | None:
        """Start what is configured, once the host's name is known."""
        if self._transport is None and self._placement is None:
            return None
        try:
            node = self._conf.nova.hypervisor_hostname or self._hostname()
        except HypervisorUnavailable:
            return None
        if self._transport is not None:
            from amp_nova.agent.publish.host_reports import Publisher
            from amp_nova.agent.publish.message_bus import MessageBus

            bus = MessageBus(self._transport, node)
            self._publisher = Publisher(self._conf.reports, node, bus)
            self._publisher.start()
        if self._placement is not None:
            from amp_nova.agent.publish.placement import Inventory

            self._inventory = Inventory(self._placement, node)
            self._inventory.start()
        return replace(self.admits, node=node)


def _policy(options: cfg.ConfigOpts.GroupAttr, in_force: str) -> str:
    """The policy in force, with the parameter that matters to schedulers."""
    given = {line.replace(" ", "").lower() for line in options.policy_parameter}
    compares_vcpus = in_force == options.policy and PER_VCPU in given
    return f"{in_force}:{PER_VCPU}" if compares_vcpus else in_force


def shared_pcpus(text: str | None) -> frozenset[int] | None:
    """The pCPUs that Nova gives to instances (``[nova] cpu_shared_set``); ``None`` for all.

    Raises:
        ConfigInvalid: the text is not a list of CPUs.
    """
    if text is None:
        return None
    try:
        return cpulist.parse_cpuset(text) if text.strip() else frozenset()
    except ValueError as exc:
        raise ConfigInvalid(
            f"[nova] cpu_shared_set = {text} is not valid: {exc}; copy the value from nova.conf"
        ) from exc
