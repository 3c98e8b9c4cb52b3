"""Connects a scheduler process to agents and other workers, by oslo.messaging.

It receives host reports, exchanges decisions with other workers, and reads from Nova's database how
these ended. Nova loads filters and weighers before it forks its workers, so loading must not start
anything. The first request of a worker starts the server, in its own thread, so that an unreachable
broker delays no request for long. In native-thread mode a worker starts it right after the fork.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nova.conf
import nova.rpc
import nova.utils
import oslo_messaging as messaging

from amp_nova.nova_plugins import metrics, nova_records, options
from amp_nova.nova_plugins.decisions import Decisions
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.nova_records import Cells, HostLookup
from amp_nova.wire import topics

LOG = logging.getLogger(__name__)
CONF = options.register(nova.conf.CONF)
RETRY_S = 5.0
FIRST_REPORTS_S = 5.0
"""How long requests wait for the first reports of hosts after a process began to listen."""
FOLLOW_UP_S = 2.0
"""Time between two looks into Nova's database while an instance is pending on a host."""
IDLE_S = 30.0
"""The same while none is: Nova may still send one without asking (``az:host``, a long resize)."""


class Endpoint:
    """The remote procedures that agents call."""

    target = messaging.Target(namespace=topics.NAMESPACE, version=topics.RPC_VERSION)

    def __init__(self, states: HostStates) -> None:
        self._states = states

    def report(self, _context: object, snapshot: object) -> None:
        """Receive a host report. The argument's name is part of the wire format."""
        self._states.accept(snapshot)


class WorkerEndpoint:
    """The remote procedures that scheduler workers call."""

    target = messaging.Target(namespace=topics.NAMESPACE, version=topics.RPC_VERSION)

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def decide(self, _context: object, decision: object) -> None:
        """Receive a decision. The argument's name is part of the wire format."""
        self._decisions.receive(decision)


class ReportServer:
    """Listens for host reports and decisions; starts once per process."""

    def __init__(self, states: HostStates, host: str | None = None) -> None:
        self.states = states
        self.decisions = Decisions(states)
        self.metrics = metrics.Metrics(states)
        self._host = host
        self._pid: int | None = None
        self._first_until_s = 0.0
        self._lock = threading.Lock()
        self._servers: list[Any] = []
        self._cells = Cells()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start listening unless this process already does; returns at once."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                self._first_until_s = time.monotonic() + FIRST_REPORTS_S
                for run in (self._start_listening, self._follow_up, self._write_metrics):
                    threading.Thread(target=run, name="amp-reports", daemon=True).start()

    def wait_for_first(self, hosts: Iterable[Any]) -> None:
        """Wait until all hosts have reported, if this process has only just begun to listen.

        In eventlet mode its first request began that, and would find no host.
        """
        while time.monotonic() < self._first_until_s:
            if all(self.states.entry(host.nodename) is not None for host in hosts):
                return
            time.sleep(0.05)

    def after_fork(self) -> None:
        """Start listening in a worker that was just forked."""
        self._lock = threading.Lock()  # the thread that locked it may not exist here
        self.start()

    def stop(self) -> None:
        """Stop listening."""
        self._stopped.set()
        self.decisions.stop()
        for server in self._servers:
            server.stop()

    def follow_up(self) -> None:
        """Compare what is pending with Nova's database once; raises what the database raises."""
        began_s = time.monotonic()
        waiting = self.states.waiting()
        self.states.follow(nova_records.find(self._cells, waiting), began_s)

    def _start_listening(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except Exception as exc:  # noqa: BLE001 - drivers raise exceptions of their own
                LOG.warning("%s; retrying every %g s", exc, RETRY_S)
                self._stopped.wait(RETRY_S)
            else:
                return

    def _follow_up(self) -> None:
        """Its own thread: whatever Nova's database does, no request waits for it."""
        failing, looked_s = False, -IDLE_S
        while not self._stopped.wait(FOLLOW_UP_S):
            if not self.states.waiting() and time.monotonic() - looked_s < IDLE_S:
                continue
            looked_s = time.monotonic()
            try:
                self.follow_up()
                failing = False
            except Exception as exc:  # noqa: BLE001 - whatever Nova's database raises
                if not failing:
                    LOG.warning("cannot query instances in Nova's database: %s", exc)
                failing = True

    def _write_metrics(self) -> None:
        if folder := CONF.amp_scheduler.metrics_directory:
            metrics.write_until(self._stopped, self.metrics, Path(folder))

    def _listen(self) -> None:
        own = nova.rpc.TRANSPORT
        if own is None:
            raise RuntimeError("cannot receive host reports: Nova has no message transport yet")
        url = CONF.amp_scheduler.transport_url
        bus = messaging.get_rpc_transport(CONF, url) if url else own
        # One thread keeps the order in which the bus delivered the decisions.
        self._serve(own, topics.WORKERS, WorkerEndpoint(self.decisions), threads=1)
        workers = _client(own, topics.WORKERS)
        self.decisions.connect(lambda text: workers.cast({}, "decide", decision=text))
        self._serve(bus, topics.SCHEDULERS, Endpoint(self.states))
        LOG.info("listening for agents' reports")
        _client(bus, topics.AGENTS).cast({}, "publish")

    def _serve(self, bus: Any, topic: str, endpoint: object, threads: int | None = None) -> None:
        host = self._host or CONF.host
        server = messaging.get_rpc_server(
            bus,
            messaging.Target(exchange=topics.EXCHANGE, topic=topic, server=host),
            [endpoint],
            executor="threading" if _native_threads() else "eventlet",
            access_policy=messaging.DefaultRPCAccessPolicy,
        )
        server.start(override_pool_size=threads)
        self._servers.append(server)


def _native_threads() -> bool:
    """Nova's concurrency mode; before Nova 32 there is only eventlet."""
    mode = getattr(nova.utils, "concurrency_mode_threading", None)
    return mode is not None and bool(mode())


def _client(bus: Any, topic: str) -> Any:
    """A client that casts to everyone who listens to a topic."""
    target = messaging.Target(
        exchange=topics.EXCHANGE,
        topic=topic,
        namespace=topics.NAMESPACE,
        version=topics.RPC_VERSION,
        fanout=True,
    )
    return messaging.get_rpc_client(bus, target, retry=1)


_shared: ReportServer | None = None


def shared() -> ReportServer:
    """The server of this process, shared by the filter and the weighers."""
    global _shared
    if _shared is None:
        _shared = ReportServer(HostStates(CONF, known=HostLookup()))
        if _native_threads():
            os.register_at_fork(after_in_child=_shared.after_fork)
    return _shared
