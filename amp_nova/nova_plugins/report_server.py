# SPDX-License-Identifier: Apache-2.0
"""Connects a scheduler process to agents and other workers, by oslo.messaging.

It receives host reports, exchanges decisions with other workers, and reads from Nova's records how
these ended. Nova loads filters and weighers before it forks its workers, so loading must not start
anything: the first request of a worker does. Until the worker knows what Nova has under way, and
what the hosts report, requests that book capacity wait.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import nova.conf
import oslo_messaging as messaging
from oslo_utils import timeutils

from amp_nova import message_bus
from amp_nova.nova_plugins import metrics, nova_records, options
from amp_nova.nova_plugins.decisions import Decisions
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.nova_records import Placement
from amp_nova.wire import topics

LOG = logging.getLogger(__name__)
CONF = options.register(nova.conf.CONF)
READY_S = 30.0
"""How long after its start the requests of a worker wait for what it has to know about hosts: on a
controller whose CPUs are busy it takes more than ten seconds. Later those of which it does not know
it are refused."""
FIRST_LOOK_S = 1.0
"""Time between the first decision that is heard and the first look into Nova's records: what other
workers claimed before is there by then."""
LOOK_S = 30.0
"""Time between two looks; what is only pending is also looked for before all hosts refuse."""
MARGIN_S = 60.0
"""How much later than in Nova's records a change may be in a report: a cycle, and wrong clocks."""


class Endpoint:
    """The remote procedures that agents call."""

    target = messaging.Target(namespace=topics.NAMESPACE, version=topics.RPC_VERSION)

    def __init__(self, states: HostStates) -> None:
        self._states = states

    def report(self, _context: object, snapshot: object) -> None:
        """Receive a host report. The argument's name is part of the wire format."""
        self._states.accept(snapshot)

    def listens(self, _context: object) -> None:
        """Answer an agent that wants to know whether anybody listens."""


class WorkerEndpoint:
    """The remote procedure that scheduler workers call."""

    target = Endpoint.target

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def decide(self, _context: object, decision: object) -> None:
        """Receive a decision. The argument's name is part of the wire format."""
        self._decisions.receive(decision)


class ReportServer:
    """Listens for host reports and decisions; starts once per process."""

    def __init__(self, states: HostStates, placement: Placement, host: str | None = None) -> None:
        self.states = states
        self.decisions = Decisions(states, refresh=self.refresh)
        self.metrics = metrics.Metrics(states)
        self._placement = placement
        self._host = host
        self._started_s: float | None = None
        self._lock = threading.RLock()
        self._servers: list[Any] = []
        self._refreshed_s = 0.0
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start listening unless this process already does; returns at once."""
        if self._started_s is not None:
            return
        with self._lock:
            if self._started_s is None:
                self._started_s = time.monotonic()
                LOG.info(
                    "this worker has just started: its requests wait for the reports of hosts, and "
                    "for what Nova's records say of instances on their way, at most %g s",
                    READY_S,
                )
                for run in (self._join_workers, self._receive_reports, self._write_metrics):
                    threading.Thread(target=run, name="amp-reports", daemon=True).start()

    def wait_until_ready(self, hosts: Collection[Any]) -> None:
        """Wait until this worker may decide about these hosts, if it has only just started."""
        until_s = (self._started_s or 0.0) + READY_S
        while not all(map(self.states.knows, hosts)) and time.monotonic() < until_s:
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop listening."""
        self._stopped.set()
        self.decisions.stop()
        for server in self._servers:
            server.stop()

    def refresh(self) -> bool:
        """Look what became of all that is pending, before a request is refused because of it.

        Returns whether that was done since this was called, by this or by another request.
        """
        called_s = time.monotonic()
        if not self.states.pending():
            return False
        with self._lock:
            if self._refreshed_s < called_s:
                self._refreshed_s = time.monotonic()
                try:
                    self.follow_up(arriving=False)
                except Exception as exc:  # noqa: BLE001 - whatever Nova's database raises
                    LOG.warning("cannot query instances in Nova's records: %s", exc)
                    return False
        return True

    def follow_up(self, arriving: bool = True) -> None:
        """Read what became of all that is pending, and what is ``arriving``.

        Raises what ``nova_records.find`` does.
        """
        age_s = CONF.amp_scheduler.stale_after_s + MARGIN_S
        oldest = timeutils.utcnow(with_timezone=True) - timedelta(seconds=age_s)
        since = oldest if arriving else None
        with self._lock:  # whoever refreshes needs the answer
            began_s = time.monotonic()
            instances, cells = nova_records.find(self._placement, self.states.pending(), since)
            self.states.follow(instances, began_s, cells if arriving else ())

    def _join_workers(self) -> None:
        """Exchange decisions with the other workers, and from then on follow Nova's records."""
        own = message_bus.transport(CONF)
        self._until_done(
            "cannot hear the other scheduler workers",
            lambda: self._serve(own, topics.WORKERS, WorkerEndpoint(self.decisions)),
        )
        workers = _client(own, topics.WORKERS)
        self.decisions.connect(lambda text: workers.cast({}, "decide", decision=text))
        self._stopped.wait(FIRST_LOOK_S)
        self._repeat("cannot query instances in Nova's records", self.follow_up, LOOK_S)

    def _receive_reports(self) -> None:
        """Receive the reports of hosts that Nova has, from the bus that is meant for them."""
        self._until_done("cannot read the compute nodes in Placement", self._placement.read)
        bus = message_bus.transport(CONF, CONF.amp_scheduler.transport_url)
        self._until_done(
            "cannot receive host reports",
            lambda: self._serve(bus, topics.SCHEDULERS, Endpoint(self.states)),
        )
        LOG.info("listening for agents' reports")
        agents = _client(bus, topics.AGENTS)
        self._until_done("cannot ask agents for reports", lambda: agents.cast({}, "publish"))

    def _until_done(self, failure: str, step: Callable[[], object]) -> None:
        """Try one step until it succeeds, or the server stops."""
        said = ""
        while not self._stopped.is_set():
            try:
                step()
            except Exception as exc:  # noqa: BLE001 - drivers raise exceptions of their own
                if f"{exc}" != said:
                    LOG.warning("%s: %s; retrying every %g s", failure, exc, message_bus.RETRY_S)
                said = f"{exc}"
                self._stopped.wait(message_bus.RETRY_S)
            else:
                return

    def _repeat(self, failure: str, step: Callable[[], object], pause_s: float) -> None:
        while not self._stopped.is_set():
            self._until_done(failure, step)
            self._stopped.wait(pause_s)

    def _serve(self, bus: Any, topic: str, endpoint: object) -> None:
        server = messaging.get_rpc_server(
            bus,
            messaging.Target(exchange=topics.EXCHANGE, topic=topic, server=self._host or CONF.host),
            [endpoint],
            access_policy=messaging.DefaultRPCAccessPolicy,
        )
        # One thread keeps the order in which the bus delivers; a pool would grow to its maximum.
        server.start(override_pool_size=1)
        self._servers.append(server)

    def _write_metrics(self) -> None:
        if folder := CONF.amp_scheduler.metrics_directory:
            write = functools.partial(metrics.write, self.metrics, Path(folder))
            self._repeat("cannot write metrics", write, metrics.INTERVAL_S)


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
    """The server of this process, shared by the filter and the weighers.

    Raises ``ValueError`` if an option is not valid: the service must not start, instead of failing
    at its requests.
    """
    global _shared
    if _shared is None:
        for option in options.OPTS:
            try:
                value = getattr(CONF[options.GROUP], option.dest)
                if value and option.dest == "transport_url":
                    message_bus.transport(CONF, value)
            except Exception as exc:  # drivers raise exceptions of their own
                raise ValueError(f"[{options.GROUP}] {option.dest}: {exc}") from exc
        placement = Placement()
        _shared = ReportServer(HostStates(CONF, known=placement), placement)
    return _shared
