"""Concurrent boots through two workers over a real RabbitMQ over-book no host.

Each worker is a process with amp-nova's own states and decisions. The flavor has no claim, and no
agent reports a guest before the end, so nothing but the workers' messages keeps them apart.
"""

import multiprocessing
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from amp_nova.nova_plugins.decisions import Decisions
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.scheduling import host_fit
from amp_nova.wire.encoding import encode
from tests import broker, hosts
from tests.host_reports import host_report, request

BOOTS, WORKERS, THREADS = 60, 2, 8
BOOKED = 0.6
CLAIM_S = 0.02
"""How long what Nova does between the filter and the choice takes."""
PAUSE_S = 0.4
"""Longest pause before a boot: more at once than the machine can do would measure the machine."""
TYPES = {"slow": (6, 1.0), "fast": (2, 2.0)}
RUN_S = 60.0 + BOOTS

pytest.importorskip("nova")
pytestmark = [
    pytest.mark.skipif(not broker.PROGRAM.exists(), reason="rabbitmq-server is not installed"),
    pytest.mark.timeout(300),
]


class Endpoint:
    """Receives decisions."""

    def __init__(self, target, decisions):
        self.target, self._decisions = target, decisions

    def decide(self, _context, decision):
        """Receive a decision."""
        self._decisions.receive(decision)


def connect(url, decisions, number):
    """Join the bus as ``ReportServer`` does, with one receiving thread."""
    import oslo_messaging as messaging
    from oslo_config import cfg

    cfg.CONF([], default_config_files=[], default_config_dirs=[])
    bus = messaging.get_rpc_transport(cfg.CONF, url)
    name = {"exchange": "nova", "topic": "amp_scheduler_worker"}
    server = messaging.get_rpc_server(
        bus,
        messaging.Target(**name, server=f"worker{number}"),
        [Endpoint(messaging.Target(namespace="amp"), decisions)],
        executor="threading",
    )
    server.start(override_pool_size=1)
    target = messaging.Target(**name, namespace="amp", fanout=True)
    client = messaging.get_rpc_client(bus, target, retry=1)
    decisions.connect(lambda text: client.cast({}, "decide", decision=text))


def worker(number, url, nodes, boots, shared):
    """One scheduler worker: places its boots from several threads, as Nova's does."""
    from oslo_config import cfg

    from amp_nova.nova_plugins import options

    barrier, placed = shared
    conf = options.register(cfg.ConfigOpts())
    conf([])
    states = HostStates(conf)
    for node in nodes:
        assert states.accept(encode(host_report(node=node, topology=hosts.topology(TYPES))))
    decisions, wanted = Decisions(states), request(pref_core=BOOKED)
    connect(url, decisions, number)
    time.sleep(2.0)

    def boot(resource):
        time.sleep(random.uniform(0.0, PAUSE_S))
        fits = [n for n in nodes if not host_fit.fit(states.entry(n).headroom, wanted).refused]
        random.shuffle(fits)
        for node in fits:
            if decisions.reserve(node, resource, wanted, False):
                time.sleep(CLAIM_S)
                decisions.decided(node, resource, wanted)
                return node
        return None

    barrier.wait()
    with ThreadPoolExecutor(THREADS) as pool:
        where = list(pool.map(boot, boots))
    time.sleep(1.0)
    placed.put(where)


def placed_by_host(url, nodes):
    """Place all boots; how many are on each host."""
    context = multiprocessing.get_context("spawn")
    shared = context.Barrier(WORKERS), context.Queue()
    boots = [f"instance-{i}" for i in range(BOOTS)]
    started = [
        context.Process(target=worker, args=(n, url, nodes, boots[n::WORKERS], shared))
        for n in range(WORKERS)
    ]
    for each in started:
        each.start()
    try:
        return Counter(node for _ in started for node in shared[1].get(timeout=RUN_S) if node)
    finally:
        for each in started:
            each.join(30)
            each.kill()


def test_workers_that_exchange_decisions_over_book_no_host(tmp_path):
    """There is capacity for about 60 % of the boots, and hardly any of it is left."""
    report, wanted, sent = (
        host_report(topology=hosts.topology(TYPES)),
        request(pref_core=BOOKED),
        {},
    )
    while not host_fit.fit(host_fit.headroom_of(report, pending=sent), wanted).refused:
        sent[f"instance-{len(sent)}"] = wanted
    most = len(sent)
    nodes = [f"host{i}" for i in range(round(0.6 * BOOTS / most))]
    bus = broker.Broker(tmp_path / "broker")
    try:
        placed = placed_by_host(bus.url, nodes)
    finally:
        bus.stop()

    assert max(placed.values()) <= most
    assert placed.total() >= most * len(nodes) - WORKERS  # both may have given up the last place
