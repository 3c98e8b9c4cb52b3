# SPDX-License-Identifier: Apache-2.0
"""The agent as a service: when cycles run, signals, answers; on a fake host."""

import os
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.agent import service
from amp_nova.agent.service import Service, Systemd
from amp_nova.exceptions import AmpError
from amp_nova.guard import lease, locks
from amp_nova.guard.pauses import Pauses
from tests.support.fakehost import resource
from tests.unit.agent.setups import HALF, NAME, run_until


@pytest.mark.parametrize(("started_by_systemd", "goes_on"), [("", True), ("/notify", False)])
def test_libvirt_at_a_socket_out_of_sight_takes_a_restart(
    setup, caplog, monkeypatch, started_by_systemd, goes_on
):
    """systemd starts the agent again, with the new socket in its mounts; nobody else would."""
    running, cycles = Service(setup.conf()), []
    running._systemd = Systemd({"NOTIFY_SOCKET": started_by_systemd})
    monkeypatch.setattr(running, "_pause", lambda _until: False)

    def cycle(_late):
        cycles.append(None)
        setup.node.libvirt.out_of_sight = len(cycles) >= 3
        if len(cycles) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return True

    monkeypatch.setattr(running, "_try_cycle", cycle)
    running.run()

    assert len(cycles) == (5 if goes_on else 3)
    assert ("takes a restart to be seen" in caplog.text) != goes_on


def test_reports_say_that_the_hypervisor_no_longer_answers(setup, monkeypatch):
    """Cycles go on with the domains it listed last, and no new instance could start there."""
    running, healthy = Service(setup.conf()), []
    monkeypatch.setattr(
        running.publishers.outbound, "publish", lambda *_a, **more: healthy.append(more["healthy"])
    )
    for answers in (True, False, True):
        monkeypatch.setattr(setup.node.libvirt, "available", answers)
        assert running._try_cycle(None)
    assert healthy == [True, False, True]


def test_a_fault_between_cycles_is_logged_once(setup, caplog):
    """Instructions are counted several times a second; a fault must not fill the log."""
    running = Service(setup.conf())
    faults = iter([True, True, True, False, True])
    running.loop = loop = SimpleNamespace(tick_s=0.0)

    def tick():
        loop.tick_s = None
        setup.wake.set()  # nothing more to wait for
        if next(faults):
            raise ValueError("a fault")

    loop.tick = tick
    for count in (1, 1, 1, 1, 2):
        loop.tick_s = 0.0
        setup.wake.clear()
        running._pause(time.monotonic() + 30)
        assert caplog.text.count("instructions could not be measured") == count


def test_a_fault_in_io_work_does_not_stop_publishing(setup, caplog):
    """Bookings and metrics do not depend on it."""
    running = Service(setup.conf())
    running.io = SimpleNamespace(due=lambda _now_s: {}["a fault"], report=None)

    running._try_cycle(None)

    assert "I/O work could not be examined" in caplog.text
    assert running.publishers.exporter.agent.last_success_s is not None


def io_work(running):
    """Replaces I/O work by steps that are always due; the instances paused in each step."""
    steps = []
    running.io = SimpleNamespace(
        due=lambda _now_s: True,
        step=lambda _of, paused, _now_s: steps.append(dict(paused)) or [],
        report=None,
    )
    return steps


def test_io_work_respects_pauses_since_the_last_cycle(setup):
    """A pause that returned holds for I/O threads, too, although no cycle has observed it."""
    running = Service(setup.conf())
    steps = io_work(running)
    running.once()

    Pauses(setup.state).pause(resource(NAME), "paused by an operator")
    running.poll_io()

    assert steps == [{resource(NAME): "paused by an operator"}]


def test_io_work_waits_for_the_cycle_lock(setup):
    """Threads are not moved while another command changes them."""
    running = Service(setup.conf())
    steps = io_work(running)
    running.once()
    poll = threading.Thread(target=running.poll_io)

    with locks.locked(setup.state, locks.CYCLE, wait_s=10):
        poll.start()
        poll.join(0.1)
        assert steps == []
    poll.join(10)

    assert len(steps) == 1


def test_an_agent_whose_lease_is_lost_writes_nothing_until_it_has_adopted(setup, monkeypatch):
    """Neither limits nor I/O threads; the next cycle takes a new lease and repairs."""
    setup.node.start(specs=HALF)
    running = Service(setup.conf())
    steps = io_work(running)
    tid, observe = setup.node.host.tid(0), running.sensor.observe

    def observe_and_lose():
        (setup.state / lease.LEASE).unlink()
        return observe()

    with running.in_control() as guarding:
        guarding.after(running.once())
        setup.node.kernel.affinity[tid] = {0, 2}
        with monkeypatch.context() as patched:
            patched.setattr(running.sensor, "observe", observe_and_lose)
            fenced = running.once()
        running.poll_io()
        guarding.after(fenced)

        assert {f.reason for f in fenced.outcome.failures.values()} == {"lease"}
        assert (setup.node.kernel.affinity[tid], steps) == ({0, 2}, [])

        repaired = running.once()
        running.poll_io()
        assert repaired.changes
        assert not repaired.outcome.failures
        assert setup.node.kernel.affinity[tid] in ({0, 1}, {2, 3})
        assert len(steps) == 1


def test_without_control_nothing_is_written(setup, monkeypatch):
    """Whoever runs a cycle has to take a lease first."""
    monkeypatch.setattr(service, "NO_LEASE", "this process has taken no lease")
    setup.node.start(specs=HALF)

    failures = Service(setup.conf()).once().outcome.failures

    assert {f.reason for f in failures.values()} == {"lease"}
    assert setup.node.kernel.writes == 0


def test_questions_are_answered_from_the_last_cycle(setup):
    """An instance by UUID, libvirt name or Nova name; an unknown one is a sentence."""
    setup.node.start(specs=HALF)
    running = Service(setup.conf())
    unfinished = "the agent has not completed a cycle yet: see its log"
    assert running._answer({"command": "status"}) == {"error": unfinished}
    running.once()

    for name in (resource(NAME), NAME, "web & shop"):
        answer = running._answer({"command": "explain", "instance": name})
        assert answer["explain"]["domain"] == NAME
    with pytest.raises(AmpError, match="no instance 'x' on this host"):
        running._answer({"command": "explain", "instance": "x"})


def test_warnings_about_the_calibration_are_logged_once(setup, caplog):
    """At the start, not in every cycle."""
    online = setup.node.sensor._online
    online.topology = replace(online.topology, warnings=("the calibration is 500 days old",))
    running = Service(setup.conf())

    run_until(running, lambda: running.last and running.last.totals.cycles > 2)

    assert caplog.text.count("the calibration is 500 days old") == 1
