"""Concurrent boots through several workers over a real RabbitMQ; prints what is over-booked.

Each worker is a process with amp-nova's own states and decisions. What Nova does between the filter
and the choice is modelled: the claim takes 20 ms and is a sum over each host in shared memory. No
agent reports a guest before the end, so nothing but the workers' messages keeps them apart.
``AMP_NOVA_BOOTS=1000`` gives the table of the guide, in half an hour::

    AMP_NOVA_BOOTS=1000 .venv-nova/bin/python -m pytest tests/benchmarks/test_over_booking.py -s
"""

import multiprocessing
import os
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from amp_nova.nova_plugins.decisions import Decisions
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.scheduling import host_fit
from amp_nova.wire.encoding import encode
from tests import broker, hosts
from tests.host_reports import host_report, request

BOOTS = int(os.environ.get("AMP_NOVA_BOOTS", "60"))
THREADS = 8
CLAIM_S = 0.02
PAUSE_S = 0.4
"""Longest pause before a boot: more at once than the machine can do would measure the machine."""
TYPES = {"slow": (6, 1.0), "fast": (2, 2.0)}
REFCORES = 10.0
RUN_S = 60.0 + BOOTS

pytest.importorskip("nova")
pytestmark = [
    pytest.mark.skipif(not broker.PROGRAM.exists(), reason="rabbitmq-server is not installed"),
    pytest.mark.timeout(7200),
]


def fitting(booked):
    """How many servers fit an empty host."""
    report = host_report(topology=hosts.topology(TYPES))
    return host_fit.servers_that_fit(report, request(pref_core=booked), 1000)


class Endpoint:
    """Receives decisions, and notes how long each was under way."""

    def __init__(self, target, decisions, delays):
        self.target, self._decisions, self._delays = target, decisions, delays

    def decide(self, _context, decision, sent_ns):
        """Receive a decision."""
        self._delays.append((time.monotonic_ns() - sent_ns) / 1e6)
        self._decisions.receive(decision)


def connect(url, decisions, number, delays):
    """Join the bus as ``ReportServer`` does, with one receiving thread."""
    import oslo_messaging as messaging
    from oslo_config import cfg

    cfg.CONF([], default_config_files=[], default_config_dirs=[])
    bus = messaging.get_rpc_transport(cfg.CONF, url)
    name = {"exchange": "nova", "topic": "amp_scheduler_worker"}
    server = messaging.get_rpc_server(
        bus,
        messaging.Target(**name, server=f"worker{number}"),
        [Endpoint(messaging.Target(namespace="amp"), decisions, delays)],
        executor="threading",
    )
    server.start(override_pool_size=1)
    target = messaging.Target(**name, namespace="amp", fanout=True)
    client = messaging.get_rpc_client(bus, target, retry=1)
    decisions.connect(
        lambda text: client.cast({}, "decide", decision=text, sent_ns=time.monotonic_ns())
    )


def worker(number, url, setup, boots, shared):
    """One scheduler worker: places its boots from several threads, as Nova's does."""
    from oslo_config import cfg

    from amp_nova.nova_plugins import options

    (count, booked, claims), (barrier, claimed, placed) = setup, shared
    conf = options.register(cfg.ConfigOpts())
    conf([])
    states = HostStates(conf)
    nodes = [f"host{i}" for i in range(count)]
    for node in nodes:
        assert states.accept(encode(host_report(node=node, topology=hosts.topology(TYPES))))
    decisions, delays, waits = Decisions(states), [], []
    if url:
        connect(url, decisions, number, delays)
        time.sleep(2.0)
    wanted = request(pref_core=booked)

    def boot(resource):
        time.sleep(random.uniform(0.0, PAUSE_S))
        fits = [n for n in nodes if not host_fit.fit(states.entry(n).headroom, wanted).refused]
        random.shuffle(fits)
        for node in fits:
            began = time.monotonic()
            if not decisions.reserve(node, resource, wanted, False):
                continue
            waits.append((time.monotonic() - began) * 1e3)
            time.sleep(CLAIM_S)
            at = nodes.index(node)
            with claimed.get_lock():
                if claims and claimed[at] + booked > REFCORES + 1e-6:
                    continue
                claimed[at] += booked
            decisions.decided(node, resource, wanted)
            return node
        return None

    barrier.wait()
    with ThreadPoolExecutor(THREADS) as pool:
        found = dict(zip(boots, pool.map(boot, boots), strict=True))
    time.sleep(1.0)
    placed.put((found, delays, waits))


def run(url, workers, booked, claims):
    """Place all boots; the number placed, that of over-booked vCPUs, and times in ms."""
    context = multiprocessing.get_context("spawn")
    count = max(1, round(0.6 * BOOTS / fitting(booked)))
    shared = context.Barrier(workers), context.Array("d", count), context.Queue()
    boots = [f"instance-{i}" for i in range(BOOTS)]
    started = [
        context.Process(
            target=worker, args=(n, url, (count, booked, claims), boots[n::workers], shared)
        )
        for n in range(workers)
    ]
    for each in started:
        each.start()
    placed, delays, waits = {}, [], []
    for _ in started:
        found, late, waited = shared[2].get(timeout=RUN_S)
        placed |= found
        delays += late
        waits += waited
    for each in started:
        each.join(30)
        each.kill()
    over, by_node = 0, {}
    for resource, node in placed.items():
        by_node.setdefault(node, []).append(resource)
    most = fitting(booked)
    for node, there in by_node.items():
        over += max(0, len(there) - most) if node else 0
    return len(placed) - len(by_node.get(None, ())), count * most, over, delays, waits


def test_over_booked_vcpus(tmp_path):
    """Before: workers that do not tell each other. After: those that do."""
    bus = broker.Broker(tmp_path / "broker")
    try:
        print(f"\n{BOOTS} boots: placed of capacity, over-booked vCPUs; ms to other workers, wait")
        whole = BOOTS >= 1000
        for booked in (0.6, 0.35, 0.15) if whole else (0.6,):
            for workers in (1, 2, 4) if whole else (2,):
                for claims in (False, True):
                    for url in (None, bus.url):
                        placed, most, over, delays, waits = run(url, workers, booked, claims)
                        told = "after " if url else "before"
                        claim = "claim" if claims else "none "
                        print(
                            f"{booked:5} {workers} workers, {claim} {told} {placed}/{most} {over}",
                            _figures(delays) + _figures(waits) if url else "",
                            flush=True,
                        )
                        assert url is None or over <= BOOTS // 100
    finally:
        bus.stop()


def _figures(values):
    values = sorted(values)
    return f"; median {statistics.median(values):.1f}, 99% {values[len(values) * 99 // 100]:.1f}"
