# SPDX-License-Identifier: Apache-2.0
"""The agent's threads: what wakes the one that runs cycles, and those beside it.

A helper thread that ends is restarted; one that hangs is reported. A thread cannot be killed: while
one hangs, the agent does not feed systemd's watchdog, which then restarts the whole agent; limits
stay in force meanwhile.
"""

import contextlib
import logging
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator

LOG = logging.getLogger(__name__)
_STOPPING = (signal.SIGTERM, signal.SIGINT)
SILENT_S = 120.0
"""A thread that has not reported for this long hangs: its calls all have shorter time-outs."""
BACK_OFF_S, BACK_OFF_MAX_S = 2.0, 60.0
"""Longest wait after a first failure, and after many. The bound doubles with each failure, and the
wait is random below it, so that the agents of a cloud do not all return at once."""
WAIT_MAX_S = 5.0
"""Longest time that a waiting thread spends between two heartbeats."""


class HelperThread:
    """One helper thread: runs ``work``, which returns once ``beat`` says not to go on.

    ``started_s`` and ``last_success_s``: in seconds since the epoch; ``failure``: why it does not
    succeed now, empty if it does.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.restarts = 0
        self.started_s = 0.0
        self.last_success_s: float | None = None
        self.failure = ""
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ended = threading.Event()
        self._beat_s = 0.0

    @property
    def hangs(self) -> bool:
        """Whether it has not reported for too long."""
        return self._thread.is_alive() and time.monotonic() - self._beat_s > SILENT_S

    def start(self) -> None:
        self.beat()
        self.started_s = time.time()
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop, without waiting until it has."""
        self._ended.set()

    def beat(self) -> bool:
        """Report; to be called at least every ``SILENT_S``. Returns whether to go on."""
        self._beat_s = time.monotonic()
        return not self._ended.is_set()

    def success(self) -> None:
        """Report that the work was done: a report was sent, or an inventory is up to date."""
        self.last_success_s = time.time()

    def pause(self, seconds: float) -> None:
        """Wait, with heartbeats, but not after the thread has been asked to stop."""
        until_s = time.monotonic() + seconds
        while self.beat() and (left_s := until_s - time.monotonic()) > 0:
            self._ended.wait(min(left_s, WAIT_MAX_S))

    def persist(self, attempt: Callable[[], None], failing: str) -> bool:
        """Retry ``attempt`` until it succeeds, with exponential back-off and jitter.

        Returns ``False`` if the thread was asked to stop first. ``failing`` begins the log message
        of the first failure.
        """
        failures = 0
        while self.beat():
            try:
                attempt()
            except Exception as exc:  # noqa: BLE001 - whatever fails, it is retried
                failure = exc
            else:
                self.failure = ""
                if failures:
                    LOG.info("succeeded after %d attempts", failures + 1)
                return True
            # Not while it is handled, when oslo.log would add it to each line.
            self.failure = " ".join(str(failure).split()) or type(failure).__name__
            if not failures:
                LOG.error("%s: %s; retrying until it succeeds", failing, self.failure)
            failures += 1
            LOG.debug("attempt %d failed", failures, exc_info=failure)
            self.pause(_back_off_s(failures))
        return False

    def _run(self) -> None:
        while self.beat():
            try:
                self._work()
            except Exception:  # the last resort: it is restarted
                LOG.exception("the thread '%s' failed", self.name)
            if self.beat():
                self.restarts += 1
                what = "the thread '%s' ended; restarting it (%d so far)"
                LOG.error(what, self.name, self.restarts)
                self.pause(_back_off_s(self.restarts))


def _back_off_s(failures: int) -> float:
    """A random wait after so many failures."""
    return random.uniform(0.0, min(BACK_OFF_MAX_S, BACK_OFF_S * 2.0 ** min(failures - 1, 9)))


class Wakeup:
    """Wakes one waiting thread on events from other threads and on signals, without a lock.

    A signal handler that takes a lock can interrupt the thread that holds it, and deadlock. So
    events and signals are bytes in a pipe. Any number of threads may call ``set``.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._event = False
        self._hung_up = False
        self.stopping = 0
        """The signal that asks the process to end, 0 until there is one."""

    def set(self) -> None:
        """Report an event; any thread may call this."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread will wake anyway
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Discard the events so far."""
        self._happened()
        self._event = False

    def wait(self, timeout_s: float) -> bool:
        """Wait for an event or a signal; returns whether there was one since the last ``clear``."""
        until_s = time.monotonic() + timeout_s
        while not self._happened() and (left_s := until_s - time.monotonic()) > 0:
            self._poll.poll(left_s * 1000)
        return self._event or self.stopping > 0

    def reload(self) -> bool:
        """Whether SIGHUP asked for the configuration to be read again since the last call."""
        asked, self._hung_up = self._hung_up, False
        return asked

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle these signals inside a ``with`` block; only in the main thread."""
        handlers = {n: signal.signal(n, self._on_signal) for n in (*_STOPPING, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self._hung_up = True
        else:
            self.stopping = number
        self.set()

    def _happened(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._event = bool(os.read(self._read, 4096))
        return self._event or self.stopping > 0
