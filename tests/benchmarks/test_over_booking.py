# SPDX-License-Identifier: Apache-2.0
"""Concurrent boots through several workers over a real RabbitMQ: all that fit are placed, once.

Each worker is a process with amp-nova's own states and decisions. No agent reports a guest before
the end, so nothing but the workers' messages keeps them apart. What Nova does in between is FAKE:
a claim takes a while, and with claims is refused beyond the sum of a core type, as in Placement.
Some builds fail, and Nova's records say so half a second later.

In CI a few boots; the whole comparison, which takes some minutes::

    AMP_NOVA_BOOTS=1000 .venv-nova/bin/python -m pytest -s tests/benchmarks/test_over_booking.py
"""

import multiprocessing
import multiprocessing.managers
import os
import random
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from amp_nova.admission import packing
from amp_nova.nova_plugins.decisions import Decisions
from amp_nova.nova_plugins.host_entry import Query
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.scheduling import host_fit
from amp_nova.scheduling.demands import demands_on
from amp_nova.wire.encoding import encode
from tests.support import broker, hosts
from tests.support.host_reports import host_report, request

BOOTS = int(os.environ.get("AMP_NOVA_BOOTS", "60"))
WORKERS = (1, 2, 4) if BOOTS > 100 else (2,)
THREADS = 8
SIZES = (0.6, 0.35, 0.15)
FAILING_RATIO = 0.05
CLAIM_S = 0.02
"""How long what Nova does between the filter and the choice takes."""
PAUSE_S = 0.4
"""Longest pause before a boot: more at once than the machine can do would measure the machine."""
TYPES = {"slow": (6, 1.0), "fast": (2, 2.0)}
RUN_S = 60.0 + BOOTS

pytest.importorskip("nova")
pytestmark = [
    pytest.mark.skipif(not broker.PROGRAM.exists(), reason="rabbitmq-server is not installed"),
    pytest.mark.timeout(600 + BOOTS),
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
    )
    server.start(override_pool_size=1)
    target = messaging.Target(**name, namespace="amp", fanout=True)
    client = messaging.get_rpc_client(bus, target, retry=1)
    decisions.connect(lambda text: client.cast({}, "decide", decision=text))


class Claims:
    """A FAKE Placement, in the parent's process: the sums of each core type of each host."""

    def __init__(self):
        self._lock = threading.Lock()
        self._free = defaultdict(lambda: {t: n * c for t, (n, c) in TYPES.items()})

    def claim(self, node, core_type, refcores):
        """Whether the sum of a core type suffices: if possible of the one that is preferred."""
        with self._lock:
            free = self._free[node]
            enough = [t for t in free if free[t] >= refcores - 1e-9]
            for found in sorted(enough, key=lambda t: t != core_type)[:1]:
                free[found] -= refcores
            return bool(enough)


multiprocessing.managers.BaseManager.register("Claims", Claims)


def passes(query, entry):
    """Whether a host passes, as in the filter: also if there is no time left to examine it."""
    fit = query.fit(entry)
    return fit is None or fit.refused is None or query.may_fit(entry)


def follow(states, failed, ended):
    """Tell a worker of failed builds, as Nova's records do."""
    while not ended.wait(0.5):
        states.follow(dict.fromkeys(failed.keys()), time.monotonic() - 0.5)


def worker(number, url, nodes, boots, shared):
    """One scheduler worker: places its boots from several threads, as Nova's does."""
    from oslo_config import cfg

    from amp_nova.nova_plugins import options

    barrier, placed, failed, claims = shared
    conf = options.register(cfg.ConfigOpts())
    conf([])
    states = HostStates(conf)
    for node in nodes:
        assert states.accept(encode(host_report(node=node, topology=hosts.topology(TYPES))))
    decisions = Decisions(states)
    connect(url, decisions, number)
    time.sleep(2.0)
    ended = threading.Event()

    def boot(each):
        resource, booked = each
        wanted = request(pref_core=booked)
        time.sleep(random.uniform(0.0, PAUSE_S))
        query, entries = Query(resource, wanted), {n: states.entry(n) for n in nodes}
        fits = [node for node, entry in entries.items() if passes(query, entry)]
        random.shuffle(fits)
        reserved = None
        for node in fits:
            if reserved:
                decisions.release(reserved, resource)
                reserved = None
            if not (turned := query.turned()):
                continue
            fit = decisions.reserve(node, turned)
            if fit.refused is not None:
                continue
            reserved = node
            time.sleep(CLAIM_S)
            if claims is None or claims.claim(node, fit.core_types[0], booked):
                decisions.decided(node, resource, wanted)
                if random.random() < FAILING_RATIO:
                    failed[resource] = None
                return resource, booked, node
        return resource, booked, None

    threading.Thread(target=follow, args=(states, failed, ended), daemon=True).start()
    barrier.wait()
    with ThreadPoolExecutor(THREADS) as pool:
        where = list(pool.map(boot, boots))
    barrier.wait()
    time.sleep(1.0)
    ended.set()
    placed.put(where)


def places(url, nodes, boots, workers, with_claims):
    """Place all boots: each with its size and its host, or ``None``; and which builds failed."""
    context = multiprocessing.get_context("spawn")
    with (
        context.Manager() as manager,
        multiprocessing.managers.BaseManager(ctx=context) as claiming,
    ):
        failed, claims = manager.dict(), claiming.Claims() if with_claims else None
        shared = context.Barrier(workers), context.Queue(), failed, claims
        started = [
            context.Process(target=worker, args=(n, url, nodes, boots[n::workers], shared))
            for n in range(workers)
        ]
        for each in started:
            each.start()
        try:
            return [p for _ in started for p in shared[1].get(timeout=RUN_S)], set(failed.keys())
        finally:
            for each in started:
                each.join(30)
                each.kill()


def fits_beside(report, sent, wanted):
    """Whether a request fits an empty host beside these."""
    return not host_fit.fit(host_fit.capacity_of(report, pending=sent), wanted).refused


@pytest.mark.parametrize("with_claims", [False, True][: 1 + (BOOTS > 100)])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("sizes", [SIZES, (0.6,)][: 1 + (BOOTS > 100)])
def test_all_that_fit_are_placed_and_no_host_is_over_booked(tmp_path, workers, with_claims, sizes):
    """There are as many hosts as 80 % of the boots need.

    A refusal is false if the request would fit beside all that was placed, even if its build
    failed: then there was room at the time.
    """
    report = host_report(topology=hosts.topology(TYPES))
    boots = [(f"instance-{i}", sizes[i % len(sizes)]) for i in range(BOOTS)]
    filled, count = {}, 1
    for resource, booked in boots[: round(0.8 * BOOTS)]:
        if not fits_beside(report, filled, request(pref_core=booked)):
            filled, count = {}, count + 1
        filled[resource] = (request(pref_core=booked),)
    nodes = [f"host{i}" for i in range(count)]
    bus = broker.Broker(tmp_path / "broker")
    began_s = time.monotonic()
    try:
        placed, failed = places(bus.url, nodes, boots, workers, with_claims)
    finally:
        bus.stop()

    on = defaultdict(dict)
    for resource, booked, node in placed:
        if node is not None:
            on[node][resource] = (request(pref_core=booked),)
    over = []
    for node, sent in on.items():
        there = {resource: wanted for resource, wanted in sent.items() if resource not in failed}
        if not packing.pack(demands_on(report, pending=there), report.topology).complete:
            over.append(node)
    refused = [booked for _, booked, node in placed if node is None]
    false = [
        booked
        for booked in refused
        if any(fits_beside(report, on[node], request(pref_core=booked)) for node in nodes)
    ]
    print(
        f"{BOOTS} boots of {sizes}, {workers} workers, claims {with_claims}: "
        f"{BOOTS - len(refused)} placed on {count} hosts, {len(refused)} refused "
        f"{dict(Counter(refused))}, {len(false)} of them falsely, {len(failed)} builds failed, "
        f"{len(over)} hosts over-booked, {time.monotonic() - began_s:.0f} s"
    )
    assert over == []
    if not with_claims:  # Placement's sums are those of a core type, which the packing may change
        assert false == []
