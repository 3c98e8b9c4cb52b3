# SPDX-License-Identifier: Apache-2.0
"""A message bus that goes away: RabbitMQ as a process of this test, an agent over stand-ins."""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("oslo_messaging", reason="oslo.messaging is not installed")

import oslo_messaging as messaging
from oslo_config import cfg

from amp_nova.agent.publish.host_reports import MessageBus
from amp_nova.agent.publish.host_warnings import NO_SCHEDULER
from tests.support.broker import ADDRESS, PROGRAM, Broker
from tests.support.lab import until
from tests.support.scheduler import Scheduler
from tests.support.stands import StandHost, host, why_not

PATIENCE_S = 120.0
AWAY_S = 5.0
"""Five leases."""
HOLDS = "bookings hold, the agent goes on; the scheduler learns the present state afterwards"

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.skipif(not PROGRAM.exists(), reason="rabbitmq-server is not installed"),
    pytest.mark.timeout(600),
]


class Cable:
    """Passes bytes on between clients and a port, unless it is cut: then nobody hears anything."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._whole = threading.Event()
        self._whole.set()
        self._server = socket.create_server((ADDRESS, 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection((ADDRESS, self._port))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                to.sendall(data)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Nothing passes any more."""
        self._whole.clear()

    def mend(self) -> None:
        """What was sent meanwhile arrives, and everything passes again."""
        self._whole.set()

    def close(self) -> None:
        """Take no more clients."""
        self.mend()
        self._server.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all of these."""
    made = Broker(tmp_path_factory.mktemp("broker") / "broker")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def scheduler(broker: Broker) -> Iterator[Scheduler]:
    """Who receives the reports."""
    made = Scheduler(broker.url)
    yield made
    made.close()


@contextlib.contextmanager
def reporting(folder, node: str, port: object) -> Iterator[StandHost]:
    """A host of stand-ins whose agent reports every second; ``port``: with a virtual host."""
    url = f"rabbit://guest:guest@{ADDRESS}:{port}"
    lines = (f"hypervisor_hostname = {node}", "[reports]", f"transport_url = {url}")
    more = "\n".join(("[nova]", *lines, "interval_s = 1", ""))
    with host(folder, more) as here:
        here.config.chmod(0o600)
        here.start()
        until(here.controlled, PATIENCE_S, "control")
        yield here


def away(here, scheduler, node, record_property, *, back):
    """The bus is away; then it is back: the agent enforces meanwhile, and reports afterwards."""
    end = time.monotonic() + AWAY_S
    here.booked.set("cpu.cfs_quota_us", -1)
    until(here.controlled, PATIENCE_S, "the repair")
    while time.monotonic() < end:
        assert here.bookings_hold()
        time.sleep(0.1)
    heard = scheduler.reports[node]
    began_s = time.monotonic()
    back()
    until(lambda: scheduler.reports[node] > heard, PATIENCE_S, "a report")
    record_property("recovery_s", time.monotonic() - began_s)
    report = scheduler.states.entry(node).report
    assert {i.resource for i in report.instances} == set(here.resources())
    assert here.process.poll() is None


@pytest.mark.parametrize("knows", [True, False], ids=["new", "old"])
def test_a_scheduler_that_listens_answers(broker, scheduler, monkeypatch, knows):
    """Also one of an older release, which does not know the question."""
    if not knows:
        monkeypatch.delattr(Scheduler, "listens")
    transport = messaging.get_rpc_transport(cfg.CONF, url=broker.url)

    MessageBus(transport, "asking").probe()

    transport.cleanup()


def test_that_no_scheduler_listens_is_said_until_one_does(tmp_path, broker):
    """Status, log and metric: reports are sent on a virtual host on which nobody receives them."""
    broker.control("add_vhost", "empty")
    broker.control("set_permissions", "--vhost", "empty", "guest", ".*", ".*", ".*")
    with reporting(tmp_path / "host", "unheard", f"{broker.port}/empty") as here:
        until(lambda: here.metric("amp_host_warnings", about="no_scheduler"), 60, "the warning")
        assert NO_SCHEDULER in here.cli("status").stdout
        assert NO_SCHEDULER in here.log.read_text()
        late = Scheduler(f"{broker.url}empty")
        until(lambda: not here.metric("amp_host_warnings", about="no_scheduler"), 60, "an answer")
        late.close()


@pytest.mark.fault("broker stopped (SIGSTOP)", HOLDS)
def test_a_stopped_broker(tmp_path, broker, scheduler, record_property):
    """Its connections stay open, and nobody answers."""
    with reporting(tmp_path / "host", "stopped", broker.port) as here:
        until(lambda: scheduler.reports["stopped"], PATIENCE_S, "the first report")
        broker.signal(signal.SIGSTOP)
        back = contextlib.ExitStack()
        back.callback(broker.signal, signal.SIGCONT)
        with back:
            away(here, scheduler, "stopped", record_property, back=back.close)


@pytest.mark.fault("broker partition longer than a lease", HOLDS)
def test_a_partition(tmp_path, broker, scheduler, record_property):
    """Between the agent and the broker only."""
    cable = Cable(broker.port)
    try:
        with reporting(tmp_path / "host", "apart", cable.port) as here:
            until(lambda: scheduler.reports["apart"], PATIENCE_S, "the first report")
            cable.cut()
            away(here, scheduler, "apart", record_property, back=cable.mend)
    finally:
        cable.close()


@pytest.mark.fault("broker killed and started anew", HOLDS)
def test_a_broker_that_is_replaced(tmp_path, record_property):
    """At the same address; reports that were queued are lost, which is nobody's loss."""
    first = Broker(tmp_path / "first")
    try:
        with reporting(tmp_path / "host", "replaced", first.port) as here:
            first.stop()
            here.booked.set("cpu.cfs_quota_us", -1)
            until(here.controlled, PATIENCE_S, "the repair")
            second = Broker(tmp_path / "second", port=first.port)
            scheduler = Scheduler(second.url)
            try:
                began_s = time.monotonic()
                until(lambda: scheduler.reports["replaced"], PATIENCE_S, "a report")
                record_property("recovery_s", time.monotonic() - began_s)
            finally:
                scheduler.close()
                second.stop()
            assert here.process.poll() is None
    finally:
        first.stop()
