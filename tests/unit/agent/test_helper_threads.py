"""Threads beside the control loop: restarted when they end, replaced when they hang."""

import threading
import time

import pytest

from amp_nova.agent import helper_threads
from amp_nova.agent.helper_threads import Heartbeat, HelperThread, supervise
from tests.programs import until


@pytest.fixture
def eager(monkeypatch):
    """No waiting between restarts."""
    monkeypatch.setattr(helper_threads, "BACK_OFF_S", 0.0)
    monkeypatch.setattr(helper_threads, "BACK_OFF_MAX_S", 0.0)


def test_a_thread_that_ends_is_restarted_and_counted(eager, caplog):
    """Whether it returned or failed; the reason is in the log."""
    runs = []

    def work(heartbeat):
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("a fault")
        if len(runs) > 2:
            heartbeat.success()
            heartbeat.pause(30)

    thread = HelperThread("reports", work)
    thread.start()
    until(lambda: thread.supervise() and len(runs) >= 3 and thread.status.last_success_s)

    assert (thread.status.name, thread.status.restarts) == ("reports", 2)
    assert "a fault" in caplog.text
    assert "the thread 'reports' ended; it is restarted (1 so far)" in caplog.text
    thread.stop()
    assert thread.supervise()


def test_a_thread_that_fails_at_once_is_restarted_less_and_less_often(monkeypatch):
    """A fault that persists does not use the CPU."""
    monkeypatch.setattr(helper_threads, "BACK_OFF_MAX_S", 3600.0)
    runs = []
    thread = HelperThread("reports", lambda _heartbeat: runs.append(1))
    thread.start()
    until(lambda: thread.supervise() and len(runs) == 2)

    for _ in range(50):
        assert thread.supervise()
        time.sleep(0.001)

    assert len(runs) == 2
    thread.stop()


def test_a_thread_that_hangs_is_replaced_a_few_times(eager, monkeypatch):
    """After that the process as a whole has to be restarted; it heals when a thread returns."""
    monkeypatch.setattr(helper_threads, "SILENT_S", 0.02)
    released = threading.Event()
    runs = []

    def work(heartbeat):
        runs.append(heartbeat)
        released.wait(60)
        while heartbeat.beat():
            time.sleep(0.001)

    thread = HelperThread("placement", work)
    thread.start()
    until(lambda: not supervise([thread]))

    assert thread.status.restarts == helper_threads.ABANDONED_MAX
    assert all(heartbeat.ended.is_set() for heartbeat in runs[:-1])
    monkeypatch.setattr(helper_threads, "SILENT_S", 60.0)
    released.set()
    until(lambda: supervise([thread]))
    thread.stop()


def test_a_waiting_thread_reports(monkeypatch):
    """A long pause is not silence, and it ends at once when the thread is told to end."""
    monkeypatch.setattr(helper_threads, "WAIT_MAX_S", 0.01)
    heartbeat = Heartbeat()
    done = []
    thread = threading.Thread(target=lambda: done.append(heartbeat.pause(3600)))
    thread.start()
    first = heartbeat.beat_s
    until(lambda: heartbeat.beat_s > first)

    heartbeat.ended.set()
    thread.join(30)
    assert done == [False]


def test_an_attempt_is_repeated_until_it_succeeds(monkeypatch, caplog):
    """The first failure is logged as one line, the others are not."""
    caplog.set_level("INFO")
    monkeypatch.setattr(helper_threads, "BACK_OFF_S", 0.0)
    faults = [OSError("the broker\nis down"), KeyError("x"), None]

    def attempt():
        if fault := faults.pop(0):
            raise fault

    assert Heartbeat().persist(attempt, "cannot send")
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert errors == ["cannot send: the broker is down; retrying until it succeeds"]
    assert "it succeeded after 3 attempts" in caplog.text


def test_attempts_end_with_the_thread():
    """However long the back-off is."""
    heartbeat = Heartbeat()

    def attempt():
        threading.Timer(0.02, heartbeat.ended.set).start()
        raise OSError("no")

    assert not heartbeat.persist(attempt, "cannot send")
