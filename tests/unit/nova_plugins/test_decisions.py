"""Scheduler workers that tell each other what they decide."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from amp_nova.nova_plugins import decisions, options
from amp_nova.nova_plugins.decisions import Decisions
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.wire.encoding import encode
from tests.host_reports import host_report, request
from tests.programs import until

oslo_config = pytest.importorskip("oslo_config.cfg")


def worker():
    """One scheduler worker that has the report of an empty host of four reference cores."""
    conf = options.register(oslo_config.ConfigOpts())
    conf([])
    states = HostStates(conf)
    assert states.accept(encode(host_report()))
    return Decisions(states), states


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
        if not own.reserve("host1", f"instance-{number}", wanted, True):
            return None
        own.decided("host1", f"instance-{number}", wanted)
        return f"instance-{number}"

    with ThreadPoolExecutor(12) as pool:
        placed = {name: wanted for name in pool.map(place, range(60)) if name}

    most = 2 * int(1 / booked + 1e-9) + int(2 / booked + 1e-9)
    assert len(placed) == most
    for _, states in bus:
        until(lambda s=states: s.entry("host1").requests == placed, 30, "all messages")


def test_the_end_of_a_reservation_is_told(bus):
    """Here because another host is tried, which is full."""
    (first, _), (_, states), _ = bus
    assert first.reserve("host1", "a", request(pref_core=2), True)
    assert states.entry("host1").requests == {"a": request(pref_core=2)}

    assert not first.reserve("host1", "a", request(pref_core=8), True)
    assert first.reserve("host1", "b", request(pref_core=0.5), True)  # told after the end was
    assert set(states.entry("host1").requests) == {"b"}


def test_alternates_are_reserved_in_addition_or_refused(bus):
    """A refusal does not end the reservation on the chosen host."""
    (first, _), (_, states), _ = bus
    for _, known in bus:
        known.accept(encode(host_report(node="host2")))
    assert first.reserve("host1", "a", request(pref_core=2), True)
    first.decided("host1", "a", request(pref_core=2))

    assert not first.reserve("host2", "a", request(pref_core=8), True)
    assert not first.reserve("host2", "a", request(pref_core=2), False)
    assert first.reserve("host2", "a", request(pref_core=2), True)
    for node in ("host1", "host2"):
        assert set(states.entry(node).pending) == {"a"}


def test_a_worker_without_a_bus_decides_alone_and_waits_only_once(monkeypatch, caplog):
    """Until the bus answers; the log says what may happen."""
    monkeypatch.setattr(decisions, "ECHO_S", 0.01)
    own, _ = worker()
    own.connect(lambda _text: None)
    waits = []
    monkeypatch.setattr(
        threading.Event, "wait", lambda _self, timeout=None: waits.append(timeout) or False
    )

    assert own.reserve("host1", "a", request(pref_core=2), True)
    assert own.reserve("host1", "b", request(pref_core=1), True)
    assert not own.reserve("host1", "c", request(pref_core=2), True)
    own.stop()

    assert waits.count(0.01) == 1
    assert "workers may over-book hosts" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{}",
        "[" * 100_000,
        "x" * (2 << 20),
        '{"worker":"w","number":0,"kind":"chosen","resource":"a","vcpus":[[0,-1]]}',
        '{"worker":"w","number":0,"kind":"chosen","resource":"a","vcpus":[[0,1,null,"9-1"]]}',
    ],
)
def test_a_malformed_decision_changes_nothing(caplog, text):
    """It is logged."""
    own, states = worker()
    own.receive(text)

    assert states.entry("host1").requests == {}
    assert "a worker's decision is ignored" in caplog.text


def test_a_decision_about_an_unknown_host_is_ignored():
    """A worker that has just started does not know all hosts; their reports are on the way."""
    own, states = worker()
    own.receive('{"worker":"w","number":0,"kind":"chosen","resource":"a","node":"host9"}')

    assert states.entry("host9") is None
    assert states.waiting() == frozenset()
