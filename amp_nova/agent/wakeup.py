"""Wakes the thread that runs cycles on events from other threads and on signals, without a lock.

A signal handler that takes a lock can interrupt the thread that holds it, and deadlock. So Python's
wake-up descriptor (``signal.set_wakeup_fd``) writes the signal number into a pipe; events write 0.
"""

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Iterator

LOG = logging.getLogger(__name__)
_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Wakeup:
    """One waiting thread; any number of threads may call ``set``."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._event = False
        self._signal: int | None = None

    def set(self) -> None:
        """Report an event; any thread may call this."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread will wake anyway
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Discard the events so far."""
        self._drain()
        self._event = False

    def wait(self, timeout_s: float) -> bool:
        """Wait for an event or a signal; returns whether there was one since the last ``clear``."""
        until_s = time.monotonic() + timeout_s
        while not (self.stopping or self._event) and (left_s := until_s - time.monotonic()) > 0:
            self._poll.poll(left_s * 1000)
        return self._event or self._signal is not None

    @property
    def stopping(self) -> bool:
        """Whether a signal asks the process to end."""
        self._drain()
        return self._signal is not None

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT inside a ``with`` block; only in the main thread."""
        before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, _nothing) for number in _STOPPING}
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _drain(self) -> None:
        try:
            received = os.read(self._read, 4096)
        except BlockingIOError:
            return
        self._event = self._event or b"\0" in received
        stopping = [number for number in received if number in _STOPPING]
        if stopping and self._signal is None:
            self._signal = stopping[0]
            LOG.info("stopping on signal %d; limits stay in force", self._signal)


def _nothing(_number: int, _frame: object) -> None:
    """Do nothing; without a handler the signal's default action would end the process."""
