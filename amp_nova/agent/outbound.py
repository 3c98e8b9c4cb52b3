"""What the agent tells the rest of the cloud: reports to the schedulers, inventories to Placement.

Either is there when it is configured. Both work in threads of their own, from the newest cycle.
"""

from collections.abc import Callable
from typing import Any

from oslo_config import cfg

from amp_nova.core import cpulist
from amp_nova.core.report import CycleReport
from amp_nova.exceptions import ConfigInvalid, HypervisorUnavailable


class Outbound:
    """Takes every cycle's report; begins at the first one, when the host's name is known."""

    def __init__(self, conf: cfg.ConfigOpts, hostname: Callable[[], str]) -> None:
        self._conf = conf
        self._hostname = hostname
        self._bookable = _bookable(conf.nova.cpu_shared_set)
        self._last: CycleReport | None = None
        self._node: str | None = conf.nova.hypervisor_hostname
        self._publisher: Any = None
        self._transport: Any = None
        if conf.reports.transport_url:
            from amp_nova.agent import reports  # oslo.messaging is slow to import

            self._transport = reports.connect(conf)

    def tell(self, report: CycleReport) -> None:
        """Pass on what a cycle found; returns at once."""
        self._last = report
        if self._transport is None:
            return
        if self._publisher is None:
            self._start()
        if self._publisher is not None:
            self._publisher.offer(report)

    def unwell(self) -> None:
        """Say that the hypervisor cannot be reached: what is known of the host is getting old."""
        if self._publisher is not None and self._last is not None:
            self._publisher.offer(self._last, healthy=False)

    def stop(self) -> None:
        """End what was started."""
        if self._publisher is not None:
            self._publisher.stop()

    def _start(self) -> None:
        from amp_nova.agent import reports

        try:
            self._node = self._node or self._hostname()
        except HypervisorUnavailable:
            return
        about = reports.About(
            self._node,
            self._bookable,
            self._conf.agent.reserve_ratio,
        )
        self._publisher = reports.Publisher(self._conf, about, self._transport)
        self._publisher.start()


def _bookable(text: str | None) -> frozenset[int] | None:
    """The pCPUs of a cpuset as nova.conf writes it, ``^`` for exceptions; ``None``: all."""
    if text is None:
        return None
    parts = text.replace(" ", "").split(",")
    try:
        included = cpulist.parse(",".join(p for p in parts if not p.startswith("^")))
        excluded = cpulist.parse(",".join(p[1:] for p in parts if p.startswith("^")))
    except ValueError as exc:
        raise ConfigInvalid(
            f"[nova] cpu_shared_set = {text} is not valid: {exc}; write what nova.conf has"
        ) from exc
    return frozenset(included) - set(excluded)
