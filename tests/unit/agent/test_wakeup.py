# SPDX-License-Identifier: Apache-2.0
"""Events and signals wake the thread that runs cycles."""

import os
import signal
import threading

import pytest

from amp_nova.agent.threads import Wakeup


@pytest.fixture
def wakeup():
    return Wakeup()


def test_an_event_wakes_until_it_is_cleared(wakeup):
    """From any thread; a wait without an event takes its time."""
    assert not wakeup.wait(0.01)
    threading.Timer(0.05, wakeup.set).start()

    assert wakeup.wait(30)
    assert wakeup.wait(30)
    wakeup.clear()
    assert not wakeup.wait(0.01)
    assert not wakeup.stopping


def test_any_number_of_events_is_accepted(wakeup):
    """More than the pipe holds."""
    for _ in range(70_000):
        wakeup.set()

    assert wakeup.wait(0)
    wakeup.clear()
    while wakeup.wait(0):
        wakeup.clear()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_wakes_and_asks_to_end(wakeup, number):
    """Before a wait and during one; the handlers of before return."""
    before = signal.getsignal(number)
    with wakeup.signals():
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        assert wakeup.wait(30)
        assert wakeup.stopping
        assert wakeup.wait(30)
    assert signal.getsignal(number) is before


def test_signals_while_events_are_set_and_cleared_never_deadlock(wakeup):
    """A handler that took the lock of a ``threading.Event`` would stop here sooner or later."""
    stop = threading.Event()
    counted = []

    def hail():
        while not stop.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            counted.append(1)

    with wakeup.signals():
        thread = threading.Thread(target=hail)
        thread.start()
        while len(counted) < 2000:
            wakeup.set()
            wakeup.clear()
        stop.set()
        thread.join()
        assert wakeup.stopping
