# SPDX-License-Identifier: Apache-2.0
"""Publishes host reports to the schedulers: on change, periodically, and on request.

This runs in its own thread, so an unreachable broker delays reports and nothing else. When the
broker is back, the current state is sent.
"""

import contextlib
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import oslo_messaging as messaging
from msgspec.structs import replace
from oslo_config import cfg

from amp_nova import message_bus
from amp_nova.agent.cycle import Cycle
from amp_nova.agent.publish.host_info import HostInfo, host_report
from amp_nova.agent.threads import WAIT_MAX_S, HelperThread
from amp_nova.exceptions import ConfigInvalid
from amp_nova.wire import topics
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import Origin

LOG = logging.getLogger(__name__)
GAP_LEAST_S = 1.0
"""Shortest time between two reports: a burst of changes causes one report per second."""
ANSWER_SPREAD_S = 5.0
"""The time over which agents answer a scheduler that asks all of them: 1,000 reports then take less
than a third of a core of each worker. Its first requests wait for them, at most for 30 s."""
ADDRESS = {"namespace": topics.NAMESPACE, "version": topics.RPC_VERSION}
SCHEDULERS = partial(messaging.Target, exchange=topics.EXCHANGE, topic=topics.SCHEDULERS, **ADDRESS)
PROBE_S, REPLY_S = 120.0, 10.0
"""How often a scheduler is asked whether it listens, and how long its answer may take."""


def connect(conf: cfg.ConfigOpts) -> Any:
    """The configured transport; it connects when it is first used.

    Raises ``ConfigInvalid`` if ``[reports] transport_url`` or a driver option is not valid.
    """
    try:
        # oslo.messaging reads some of its options from the process-wide configuration only.
        cfg.CONF(
            [],
            project="amp-nova",
            default_config_files=list(conf.config_file),
            default_config_dirs=list(conf.config_dir),
        )
        return message_bus.transport(cfg.CONF, conf.reports.transport_url)
    except (cfg.Error, messaging.MessagingException, ValueError) as exc:
        raise ConfigInvalid(
            f"[reports] transport_url is not valid: {exc}; copy transport_url from nova.conf"
        ) from exc


class MessageBus:
    """One agent's connection to all schedulers."""

    def __init__(self, transport: Any, node: str) -> None:
        self._transport = transport
        self._node = node
        self._stopped = threading.Event()
        self._server: Any = None

    def send(self, report: str) -> None:
        """Cast a host report to all schedulers; raises whatever the driver raises."""
        client = messaging.get_rpc_client(self._transport, SCHEDULERS(fanout=True), retry=1)
        client.cast({}, "report", snapshot=report)

    def probe(self) -> None:
        """Ask whether any scheduler listens; raises ``MessagingTimeout`` if none answers."""
        client = messaging.get_rpc_client(self._transport, SCHEDULERS(), timeout=REPLY_S, retry=1)
        with contextlib.suppress(messaging.RemoteError):  # an older scheduler does not know this
            client.call({}, "listens")

    def listen(self, publish: Callable[[], None]) -> None:
        """Call ``publish``, from another thread, whenever a scheduler requests a report."""
        threading.Thread(
            target=self._listen, args=(_Endpoint(publish),), name="report-requests", daemon=True
        ).start()

    def stop(self) -> None:
        """Stop listening."""
        self._stopped.set()
        if self._server is not None:
            self._server.stop()

    def _listen(self, endpoint: "_Endpoint") -> None:
        target = messaging.Target(exchange=topics.EXCHANGE, topic=topics.AGENTS, server=self._node)
        while not self._stopped.is_set():
            try:
                server = messaging.get_rpc_server(
                    self._transport,
                    target,
                    [endpoint],
                    access_policy=messaging.DefaultRPCAccessPolicy,
                )
                server.start(override_pool_size=1)  # a pool would grow to its maximum
            except Exception as exc:  # noqa: BLE001 - drivers raise exceptions of their own
                retry_s = message_bus.RETRY_S
                LOG.warning(
                    "cannot receive schedulers' requests: %s; retrying every %g s", exc, retry_s
                )
                self._stopped.wait(retry_s)
            else:
                self._server = server
                return


class _Endpoint:
    """The remote procedures that schedulers call."""

    target = messaging.Target(**ADDRESS)

    def __init__(self, publish: Callable[[], None]) -> None:
        self._publish = publish

    def publish(self, _context: object) -> None:
        """Send a report soon."""
        self._publish()


def _urgent(cycle: Cycle) -> object:
    """The content whose change is reported at once: bookings and places, not measurements."""
    return (
        cycle.topology,
        [(d.domain, d.failure) for d in cycle.observation.domains],
        [d.domain for d in cycle.observation.inactive],
        [
            (e.key, e.booking, e.allowed, e.home.core_type, e.home.pcpu)
            for e in cycle.entitlements.values()
        ],
    )


class Publisher(HelperThread):
    """Sends host reports of the latest cycle that it was offered."""

    def __init__(
        self,
        options: cfg.ConfigOpts.GroupAttr,
        node: str,
        bus: MessageBus,
        answer_spread_s: float = ANSWER_SPREAD_S,
    ) -> None:
        super().__init__("reports", self._send_reports)
        self._options, self._answer_spread_s = options, answer_spread_s
        self._bus = bus
        self._origin = Origin(node, str(uuid.uuid4()), 0, 0.0)
        self._offered: tuple[Cycle, HostInfo, bool, object] | None = None
        self._sent: tuple[object, ...] = ()
        """The urgent content of the last report."""
        self._due_s = 0.0
        self._requested = False
        self._wake = threading.Event()

    def start(self) -> None:
        """Start to send reports, and to listen for schedulers that request one."""
        super().start()
        self._bus.listen(self._request)

    def stop(self) -> None:
        """Stop sending and listening."""
        super().stop()
        self._wake.set()
        self._bus.stop()

    def offer(self, cycle: Cycle, info: HostInfo, healthy: bool = True) -> None:
        """Take a cycle to report, at once if urgent content changed; does not block."""
        before, self._offered = self._offered, (cycle, info, healthy, _urgent(cycle))
        if before is None or before[1:] != self._offered[1:]:
            self._wake.set()

    def _request(self) -> None:
        self._requested = True
        self._wake.set()

    def _send_reports(self) -> None:
        while self.beat():
            due_s = WAIT_MAX_S if self._offered is None else self._due_s - time.monotonic()
            self._wake.wait(min(WAIT_MAX_S, max(0.0, due_s)))
            self._wake.clear()
            if self._requested and self._due_s:
                # A scheduler asks all agents at once, so spread the answers.
                self.pause(random.uniform(0.0, self._answer_spread_s))
            if self._offered is None:
                continue
            requested, self._requested = self._requested, False
            changed = self._offered[1:] != self._sent
            due = requested or changed or time.monotonic() >= self._due_s
            if due and self.persist(self._send, "cannot send host reports"):
                self.success()
                self._due_s = time.monotonic() + self._options.interval_s
                self.pause(GAP_LEAST_S)

    def _send(self) -> None:
        """Report the cycle that was offered last; raises whatever the driver raises."""
        assert self._offered is not None
        self._origin = replace(self._origin, sequence=self._origin.sequence + 1, time_s=time.time())
        cycle, info, healthy, _ = offered = self._offered
        self._bus.send(encode(host_report(cycle, info, self._origin, healthy)))
        self._sent = offered[1:]


def scheduler_probe(bus: MessageBus) -> HelperThread:
    """A thread that asks whether schedulers listen.

    Reports are cast, so that one was sent tells nothing.
    """

    def work() -> None:
        while thread.beat():
            if thread.persist(bus.probe, "no scheduler answers"):
                thread.success()
                thread.pause(PROBE_S)

    thread = HelperThread("schedulers", work)
    return thread
