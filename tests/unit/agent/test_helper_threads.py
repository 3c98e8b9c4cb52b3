# SPDX-License-Identifier: Apache-2.0
"""Threads beside the control loop: restarted when they end, reported when they hang."""

import threading
import time

from amp_nova.agent import threads
from amp_nova.agent.threads import HelperThread
from tests.support.programs import until


def idle():
    """The work of a thread that does nothing."""


def test_a_thread_that_fails_at_once_is_restarted_less_and_less_often(monkeypatch):
    """A fault that persists does not use the CPU."""
    waits = []
    monkeypatch.setattr(threads.random, "uniform", lambda _least, most: waits.append(most))
    thread = HelperThread("reports", lambda: len(waits) == 9 and thread.stop())
    monkeypatch.setattr(thread, "pause", lambda _seconds: None)

    thread.start()
    until(lambda: not thread._thread.is_alive())

    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, *[threads.BACK_OFF_MAX_S] * 4]


def test_a_thread_that_hangs_is_reported_until_it_goes_on(monkeypatch):
    """The watchdog is not fed meanwhile, so that systemd restarts the agent."""
    monkeypatch.setattr(threads, "SILENT_S", 0.2)
    released = threading.Event()

    def work():
        released.wait(60)
        while thread.beat():
            time.sleep(0.001)

    thread = HelperThread("placement", work)
    assert not thread.hangs
    thread.start()
    assert not thread.hangs
    until(lambda: thread.hangs)

    released.set()
    until(lambda: not thread.hangs)
    thread.stop()


def test_a_waiting_thread_reports(monkeypatch):
    """A long pause is not silence, and it ends at once when the thread is told to end."""
    monkeypatch.setattr(threads, "WAIT_MAX_S", 0.01)
    monkeypatch.setattr(threads, "SILENT_S", 1.0)
    thread = HelperThread("reports", lambda: thread.pause(3600))
    thread.start()

    time.sleep(1.2)
    assert not thread.hangs

    thread.stop()
    until(lambda: not thread._thread.is_alive())


def test_attempts_end_with_the_thread():
    """However long the back-off is."""
    thread = HelperThread("reports", idle)

    def attempt():
        threading.Timer(0.02, thread.stop).start()
        raise OSError("no")

    assert not thread.persist(attempt, "cannot send")
