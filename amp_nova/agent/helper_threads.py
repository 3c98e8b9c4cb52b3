"""Threads beside the control loop: each is restarted if it ends, and replaced if it hangs.

A thread cannot be killed, so one that hangs is abandoned. With too many abandoned threads the agent
stops feeding systemd's watchdog, which restarts the whole agent.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tenacity import RetryCallState, Retrying, stop_when_event_set, wait_random_exponential

LOG = logging.getLogger(__name__)
SILENT_S = 120.0
"""A thread that has not reported for this long hangs: its calls all have shorter time-outs."""
BACK_OFF_S, BACK_OFF_MAX_S = 2.0, 60.0
"""Longest wait after a first failure, and after many. The bound doubles with each failure, and the
wait is random below it, so that the agents of a cloud do not all return at once."""
ABANDONED_MAX = 3
WAIT_MAX_S = 5.0
"""Longest time that a waiting thread spends between two heartbeats."""


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """One helper thread. ``last_success_s``: seconds since the epoch, ``None`` before the first."""

    name: str
    restarts: int
    last_success_s: float | None


class Heartbeat:
    """How one run of a thread reports: ``beat`` that it is alive, ``success`` that it did work."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.beat_s = time.monotonic()
        self.last_success_s: float | None = None

    def beat(self) -> bool:
        """Report; to be called at least every ``SILENT_S``. Returns whether to go on."""
        self.beat_s = time.monotonic()
        return not self.ended.is_set()

    def success(self) -> None:
        """Report that the work was done: a report was sent, or an inventory is up to date."""
        self.last_success_s = time.time()

    def persist(self, attempt: Callable[[], None], failing: str) -> bool:
        """Retry ``attempt`` until it succeeds, with exponential back-off and jitter.

        Returns ``False`` if the thread was told to end first. ``failing`` begins the log message
        of the first failure.
        """

        def failed(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if state.attempt_number == 1:
                LOG.error("%s: %s; retrying until it succeeds", failing, _one_line(error))
            LOG.debug("attempt %d failed", state.attempt_number, exc_info=error)

        def sleep(seconds: float) -> None:
            self.pause(seconds)

        retrying = Retrying(
            sleep=sleep,
            stop=stop_when_event_set(self.ended),
            wait=wait_random_exponential(multiplier=BACK_OFF_S, max=BACK_OFF_MAX_S),
            before_sleep=failed,
            retry_error_callback=lambda _state: None,
        )
        retrying(attempt)
        if self.ended.is_set():
            return False
        if retrying.statistics.get("attempt_number", 1) > 1:
            LOG.info("it succeeded after %s attempts", retrying.statistics["attempt_number"])
        return True

    def pause(self, seconds: float) -> bool:
        """Wait, with heartbeats; returns whether to go on."""
        until_s = time.monotonic() + seconds
        while self.beat() and (left_s := until_s - time.monotonic()) > 0:
            self.ended.wait(min(left_s, WAIT_MAX_S))
        return not self.ended.is_set()


class HelperThread:
    """One helper thread: runs ``work``, which returns once its heartbeat says not to go on."""

    def __init__(self, name: str, work: Callable[[Heartbeat], None]) -> None:
        self.name = name
        self._work = work
        self._heartbeat = Heartbeat()
        self._thread: threading.Thread | None = None
        self._abandoned: list[threading.Thread] = []
        self._restarts = 0
        self._due_s = 0.0
        self._back_off_s = 1.0

    @property
    def status(self) -> ThreadStatus:
        """Its name, restarts and last success."""
        return ThreadStatus(self.name, self._restarts, self._heartbeat.last_success_s)

    def start(self) -> None:
        """Start the thread with a new heartbeat."""
        before, self._heartbeat = self._heartbeat, Heartbeat()
        self._heartbeat.last_success_s = before.last_success_s
        self._thread = threading.Thread(
            target=self._run, args=(self._heartbeat,), name=self.name, daemon=True
        )
        self._thread.start()

    def supervise(self) -> bool:
        """Restart the thread if it ended or hangs; ``False`` if too many have been abandoned."""
        now_s, thread = time.monotonic(), self._thread
        if thread is None:
            return True
        if thread.is_alive() and now_s - self._heartbeat.beat_s <= SILENT_S:
            if now_s - self._due_s > BACK_OFF_MAX_S:
                self._back_off_s = 1.0
            return True
        self._abandoned = [t for t in self._abandoned if t.is_alive()]
        if thread.is_alive() and len(self._abandoned) >= ABANDONED_MAX:
            return False
        if now_s >= self._due_s:
            self._replace(thread, now_s)
        return True

    def stop(self) -> None:
        """Tell the thread to end, without waiting for that."""
        self._thread = None
        self._heartbeat.ended.set()

    def _replace(self, thread: threading.Thread, now_s: float) -> None:
        self._heartbeat.ended.set()
        what = "ended"
        if thread.is_alive():
            what = f"has not reported for {SILENT_S:g} s"
            self._abandoned.append(thread)
        self._restarts += 1
        LOG.error(
            "the thread '%s' %s; it is restarted (%d so far)", self.name, what, self._restarts
        )
        self._due_s = now_s + self._back_off_s
        self._back_off_s = min(2 * self._back_off_s, BACK_OFF_MAX_S)
        self.start()

    def _run(self, heartbeat: Heartbeat) -> None:
        try:
            self._work(heartbeat)
        except Exception:  # the last resort: supervise() restarts the thread
            LOG.exception("the thread '%s' failed", self.name)


def _one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def supervise(threads: Iterable[HelperThread]) -> bool:
    """Restart threads that ended or hang; ``False`` if that no longer helps for one of them."""
    well = [thread.supervise() for thread in threads]
    return all(well)
