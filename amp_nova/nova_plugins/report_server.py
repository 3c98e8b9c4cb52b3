"""Receives host reports in a scheduler process, by oslo.messaging.

Nova loads filters and weighers before it forks its workers, so loading must not start anything. The
first request of a worker starts the server, in its own thread, so that an unreachable broker delays
no request. In native-thread mode a worker starts it right after the fork.
"""

import logging
import os
import threading
import time
from typing import Any

import nova.conf
import nova.rpc
import nova.utils
import oslo_messaging as messaging

from amp_nova.nova_plugins import options
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.known_hosts import KnownHosts
from amp_nova.wire import topics

LOG = logging.getLogger(__name__)
CONF = options.register(nova.conf.CONF)
RETRY_S = 5.0


class Endpoint:
    """The remote procedures that agents call."""

    target = messaging.Target(namespace=topics.NAMESPACE, version=topics.RPC_VERSION)

    def __init__(self, states: HostStates) -> None:
        self._states = states

    def report(self, _context: object, snapshot: object) -> None:
        """Receive a host report. The argument's name is part of the wire format."""
        self._states.accept(snapshot)


class ReportServer:
    """Listens for host reports; starts once per process."""

    def __init__(self, states: HostStates, host: str | None = None) -> None:
        self.states = states
        self._host = host
        self._pid: int | None = None
        self._lock = threading.Lock()
        self._server: Any = None

    def start(self) -> None:
        """Start listening unless this process already does; returns at once."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="amp-reports", daemon=True).start()

    def after_fork(self) -> None:
        """Start listening in a worker that was just forked."""
        self._lock = threading.Lock()  # the thread that locked it may not exist here
        self.start()

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.stop()

    def _run(self) -> None:
        while True:
            try:
                self._listen()
            except Exception as exc:  # noqa: BLE001 - drivers raise exceptions of their own
                LOG.warning("cannot receive host reports: %s; retrying every %g s", exc, RETRY_S)
                time.sleep(RETRY_S)
            else:
                return

    def _listen(self) -> None:
        transport = nova.rpc.TRANSPORT
        if transport is None:
            raise RuntimeError("Nova has no message transport yet")
        threads = nova.utils.concurrency_mode_threading()
        server = messaging.get_rpc_server(
            transport,
            messaging.Target(
                exchange=topics.EXCHANGE, topic=topics.SCHEDULERS, server=self._host or CONF.host
            ),
            [Endpoint(self.states)],
            executor="threading" if threads else "eventlet",
            access_policy=messaging.DefaultRPCAccessPolicy,
        )
        server.start()
        self._server = server
        LOG.info("listening for agents' reports")
        messaging.get_rpc_client(
            transport,
            messaging.Target(
                exchange=topics.EXCHANGE,
                topic=topics.AGENTS,
                namespace=topics.NAMESPACE,
                version=topics.RPC_VERSION,
                fanout=True,
            ),
        ).cast({}, "publish")


_shared: ReportServer | None = None


def shared() -> ReportServer:
    """The server of this process, shared by the filter and the weighers."""
    global _shared
    if _shared is None:
        _shared = ReportServer(HostStates(CONF, known=KnownHosts()))
        if nova.utils.concurrency_mode_threading():
            os.register_at_fork(after_in_child=_shared.after_fork)
    return _shared
