"""Nova's message bus as the agent uses it: casts host reports, and listens for requests for one."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg

from amp_nova.exceptions import ConfigInvalid
from amp_nova.wire import topics

LOG = logging.getLogger(__name__)
RETRY_S = 5.0


def connect(conf: cfg.ConfigOpts) -> Any:
    """The configured transport; it connects when it is first used.

    Raises:
        ConfigInvalid: ``[reports] transport_url`` or a driver option is not valid.
    """
    try:
        # oslo.messaging reads some of its options from the process-wide configuration only.
        cfg.CONF(
            [],
            project="amp-nova",
            default_config_files=list(conf.config_file),
            default_config_dirs=list(conf.config_dir),
        )
        return messaging.get_rpc_transport(cfg.CONF, url=conf.reports.transport_url)
    except (cfg.Error, messaging.DriverLoadFailure, messaging.InvalidTransportURL) as exc:
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
        target = messaging.Target(
            exchange=topics.EXCHANGE,
            topic=topics.SCHEDULERS,
            namespace=topics.NAMESPACE,
            version=topics.RPC_VERSION,
            fanout=True,
        )
        client = messaging.get_rpc_client(self._transport, target, retry=1)
        client.cast({}, "report", snapshot=report)

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
                    executor="threading",
                    access_policy=messaging.DefaultRPCAccessPolicy,
                )
                server.start()
            except Exception as exc:  # noqa: BLE001 - drivers raise exceptions of their own
                LOG.warning(
                    "cannot receive schedulers' requests: %s; retrying every %g s", exc, RETRY_S
                )
                self._stopped.wait(RETRY_S)
            else:
                self._server = server
                return


class _Endpoint:
    """The remote procedures that schedulers call."""

    target = messaging.Target(namespace=topics.NAMESPACE, version=topics.RPC_VERSION)

    def __init__(self, publish: Callable[[], None]) -> None:
        self._publish = publish

    def publish(self, _context: object) -> None:
        """Send a report soon."""
        self._publish()
