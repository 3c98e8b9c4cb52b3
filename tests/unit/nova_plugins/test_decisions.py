# SPDX-License-Identifier: Apache-2.0
"""Scheduler workers that tell each other what they decide."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from amp_nova.nova_plugins import decisions, options
from amp_nova.nova_plugins.decisions import Decisions
from amp_nova.nova_plugins.host_entry import Query
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.wire import decision as wire
from amp_nova.wire.encoding import encode
from tests.support.host_reports import host_report, request
from tests.support.programs import until

oslo_config = pytest.importorskip("oslo_config.cfg")


def worker():
    """One scheduler worker that has the report of an empty host of four reference cores."""
    conf = options.register(oslo_config.ConfigOpts())
    conf([])
    states = HostStates(conf)
    assert states.accept(encode(host_report()))
    return Decisions(states), states


def requests(states):
    """What is pending on the host."""
    return {r: each.sizes[0] for r, each in states.entry("host1").pending.items()}


class FakeBus:
    """A FAKE message bus: delivers to all workers in one order, from a thread."""

    def __init__(self, *workers):
        self.sent = queue.Queue()
        self.workers = workers
        for each in workers:
            each.connect(self.sent.put)
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        """Deliver until stopped."""
        while (text := self.sent.get()) is not None:
            for each in self.workers:
                each.receive(text)

    def stop(self):
        """Stop it and the workers."""
        self.sent.put(None)
        for each in self.workers:
            each.stop()


@pytest.fixture
def bus(monkeypatch):
    """Three workers on a bus, as (decisions, states)."""
    monkeypatch.setattr(decisions, "ECHO_S", 60.0)
    made = [worker() for _ in range(3)]
    found = FakeBus(*(each for each, _ in made))
    yield made
    found.stop()


@pytest.mark.parametrize("booked", [0.15, 0.35, 0.6, 1.0])
def test_concurrent_workers_never_reserve_more_than_can_be_packed(bus, booked):
    """Nor less: each asks for everything at once, and all know the same in the end."""
    wanted = request(pref_core=booked)

    def place(number):
        own, _ = bus[number % len(bus)]
        if own.reserve("host1", Query(f"instance-{number}", wanted)).refused:
            return None
        own.decided("host1", f"instance-{number}", wanted)
        return f"instance-{number}"

    with ThreadPoolExecutor(12) as pool:
        placed = {name: wanted for name in pool.map(place, range(60)) if name}

    most = 2 * int(1 / booked + 1e-9) + int(2 / booked + 1e-9)
    assert len(placed) == most
    for _, states in bus:
        until(lambda s=states: requests(s) == placed, 30, "all messages")


def test_of_two_messages_that_cross_one_gives_up(monkeypatch):
    """RabbitMQ does not promise one order to all queues: each worker may see its own first."""
    monkeypatch.setattr(decisions, "CONTENDED_S", 0.05)
    made = [worker() for _ in range(2)]
    sent, wanted = [queue.Queue(), queue.Queue()], request(pref_core=2)

    def deliver(texts):
        for number, (own, _) in enumerate(made):
            for at in (number, 1 - number):
                own.receive(texts[at])

    for number, (own, _) in enumerate(made):
        own.connect(sent[number].put)
    with ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(own.reserve, "host1", Query(resource, wanted))
            for (own, _), resource in zip(made, "ab", strict=True)
        ]
        deliver([each.get(timeout=30) for each in sent])
        fits = [each.result(30).refused is None for each in asked]
    for own, _ in made:
        own.stop()

    assert fits == [True, False]


def test_the_end_of_a_reservation_is_sent_to_the_others(bus):
    """Here because its claim failed."""
    (first, _), (_, states), _ = bus
    assert not first.reserve("host1", Query("a", request(pref_core=2))).refused
    assert requests(states) == {"a": request(pref_core=2)}

    first.release("host1", "a")
    assert not first.reserve(
        "host1", Query("b", request(pref_core=0.5))
    ).refused  # sent after the end
    assert set(requests(states)) == {"b"}


def test_what_may_be_given_up_is_waited_for(bus):
    """It is free if the claim fails, and taken once Nova has chosen the host."""
    (first, _), (second, states), _ = bus
    wanted = request(pref_core=2)
    with ThreadPoolExecutor() as pool:
        for resource, ends in (("a", first.release), ("b", first.decided)):
            assert not first.reserve("host1", Query(resource, wanted)).refused
            until(lambda r=resource: r in states.entry("host1").pending, 30, "the message")
            other = pool.submit(second.reserve, "host1", Query("c", wanted))
            time.sleep(0.1)
            assert not other.done()
            ends("host1", resource, *([wanted] if resource == "b" else []))
            assert (other.result(30).refused is None) is (resource == "a")
            second.release("host1", "c")


def test_a_claim_that_does_not_end_is_not_waited_for_without_bound(bus, monkeypatch):
    """Its worker was killed: another host is tried."""
    monkeypatch.setattr(decisions, "CONTENDED_S", 0.05)
    (first, _), (second, states), _ = bus
    assert not first.reserve("host1", Query("a", request(pref_core=2))).refused
    until(lambda: states.entry("host1").pending, 30, "the message")
    assert second.reserve("host1", Query("b", request(pref_core=2))).refused


def test_a_worker_without_a_bus_decides_alone_and_waits_only_once(monkeypatch, caplog):
    """Until the bus answers; the log says what may happen."""
    monkeypatch.setattr(decisions, "ECHO_S", 0.01)
    own, _ = worker()
    own.connect(lambda _text: None)
    waits = []
    monkeypatch.setattr(
        threading.Event, "wait", lambda _self, timeout=None: waits.append(timeout) or False
    )

    assert not own.reserve("host1", Query("a", request(pref_core=2))).refused
    assert not own.reserve("host1", Query("b", request(pref_core=1))).refused
    assert own.reserve("host1", Query("c", request(pref_core=2))).refused
    own.stop()

    assert waits.count(0.01) == 1
    assert "workers may over-book hosts" in caplog.text


def test_what_could_not_be_sent_for_long_is_never_sent(monkeypatch):
    """The bus was away, and all workers have read Nova's records since."""
    now_s, sent, sending, away = [0.0], [], threading.Event(), threading.Event()
    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=time.sleep)
    monkeypatch.setattr(decisions, "time", clock)
    own, states = worker()

    def cast(text):
        sending.set()
        away.wait(30.0)
        sent.append(wire.decode(text).resource)

    own.connect(cast)
    own.decided("host1", "a", request(pref_core=0.5))
    assert sending.wait(30.0)
    own.decided("host1", "b", request(pref_core=0.5))
    now_s[0] = decisions.UNSENT_S
    own.decided("host1", "c", request(pref_core=0.5))
    away.set()
    until(lambda: len(sent) > 1, 30, "the last one is sent")
    own.stop()

    assert sent == ["a", "c"]
    assert states.pending() == {"a", "b", "c"}


def test_a_worker_waits_again_once_a_message_has_come_back(monkeypatch):
    """Even one that nobody waits for any more."""
    monkeypatch.setattr(decisions, "ECHO_S", 0.01)
    own, states = worker()
    sent = queue.Queue()
    own.connect(sent.put)
    for resource in "ab":
        assert own.reserve("host1", Query(resource, request(pref_core=1)))
    monkeypatch.setattr(decisions, "ECHO_S", 60.0)
    own.receive(sent.get(timeout=30.0))
    own.receive(sent.get(timeout=30.0))

    with ThreadPoolExecutor() as pool:
        last = pool.submit(own.reserve, "host1", Query("c", request(pref_core=1)))
        own.receive(sent.get(timeout=30.0))
        assert last.result(30.0)
    assert states.entry("host1").pending.keys() == {"a", "b", "c"}
    own.stop()


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{}",
        "[" * 100_000,
        "x" * (2 << 20),
        '{"worker":"w","number":0,"kind":"chosen","resource":"a","node":"host1","vcpus":[[0,-1]]}',
        '{"worker":"w","number":0,"kind":"chosen","resource":"a","node":"host1","vcpus":[[0,1,null,"9-1"]]}',
    ],
)
def test_a_malformed_decision_changes_nothing(caplog, text):
    """It is logged."""
    own, states = worker()
    own.receive(text)

    assert not states.pending()
    assert "a worker's decision is ignored" in caplog.text


def test_a_decision_about_a_host_that_nova_does_not_have_is_ignored():
    """Whoever can send messages would otherwise fill the memory with names."""
    conf = options.register(oslo_config.ConfigOpts())
    conf([])
    states = HostStates(conf, known=lambda node: node == "host9")
    own = Decisions(states)
    for node in ("host9", "stranger"):
        own.receive(
            f'{{"worker":"w","number":0,"kind":"chosen","resource":"{node}-a","node":"{node}"}}'
        )

    assert states.pending() == {"host9-a"}


def test_a_decision_about_a_host_that_has_not_reported_counts_when_it_does():
    """A worker that has just started does not know all hosts; their reports are on the way."""
    own, states = worker()
    own.receive('{"worker":"w","number":0,"kind":"chosen","resource":"a","node":"host9"}')

    assert states.entry("host9") is None
    assert states.pending() == {"a"}
    assert states.accept(encode(host_report(node="host9")))
    assert states.entry("host9").pending.keys() == {"a"}
    assert states.pending() == {"a"}
