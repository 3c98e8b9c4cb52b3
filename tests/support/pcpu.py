# SPDX-License-Identifier: Apache-2.0
"""A pCPU that a vCPU shares: a clock and a sleep for what measures from inside a guest.

The scheduler is that of Linux as far as a guest can tell. Slices end at ticks. CFS bandwidth
throttles at ticks, deducts the overrun from later periods, and refills when its own timer fires,
whose phase has nothing to do with that of the tick.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

SLICE_S = 2.8e-3
WAKEUP_S = 1e-3
LATENCY_S = 1e-5
"""From the end of a gap to the vCPU's next reading, on average."""
READING_S = 2.5e-4
"""Between two readings of the clock, where nothing happens."""


@dataclass
class Thread:
    """What runs on the pCPU: ``quota_s`` in each ``period_s`` at most.

    ``burst`` draws how long it computes and then sleeps; without, it is always busy.
    """

    quota_s: float = math.inf
    period_s: float = math.inf
    weight: float = 1.0
    burst: Callable[[random.Random], tuple[float, float]] | None = None
    run_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.runnable, self.throttled = self.burst is None, False
        self.left_s, self.burst_left_s = self.quota_s, math.inf
        self.refill_at = self.wake_at = math.inf
        self.vruntime = self.picked_s = 0.0


class Pcpu:
    """The pCPU of a vCPU, ``own``, and its neighbours; ``noise_hz``: the host's own work."""

    def __init__(
        self, own: Thread, others: list[Thread], seed: int, tick_s: float, noise_hz: float = 10.0
    ) -> None:
        self.draw = random.Random(seed)
        kernel = Thread(
            weight=100.0, burst=lambda r: (r.expovariate(1 / 60e-6), r.expovariate(noise_hz))
        )
        self.own, self.threads = own, [own, *others, kernel]
        self.tick_s, self.tick_at = tick_s, self.draw.uniform(0.0, tick_s)
        self.now = self.since = 0.0
        self.running: Thread | None = None
        for thread in self.threads:
            if thread.period_s < math.inf:
                thread.refill_at = self.draw.uniform(0.0, thread.period_s)
            if thread.burst:
                thread.wake_at = self.draw.uniform(0.0, thread.burst(self.draw)[1])
        self._pick()

    def clock(self) -> float:
        """The time of the vCPU's next reading."""
        if self.now < self.event_at:
            self.now = min(self.now + READING_S, self.event_at)
        else:
            self._event()
            self._until_own_runs()
            self.now = min(self.now + self.draw.expovariate(1 / LATENCY_S), self.event_at)
        return self.now

    def sleep(self, seconds: float) -> None:
        """Block for a time, and return when the vCPU runs again."""
        self._account()
        self.own.runnable, self.own.wake_at = False, self.now + seconds
        self._pick()
        self._until_own_runs()

    def _until_own_runs(self) -> None:
        while self.running is not self.own:
            self.now = self.event_at
            self._event()

    def _account(self) -> None:
        passed, self.since = self.now - self.since, self.now
        if (thread := self.running) is not None:
            thread.run_s += passed
            thread.vruntime += passed / thread.weight
            thread.picked_s += passed
            thread.left_s -= passed
            thread.burst_left_s -= passed

    def _pick(self) -> None:
        able = [t for t in self.threads if t.runnable and not t.throttled]
        best = min(able, key=lambda t: t.vruntime, default=None)
        if best and best is not self.running:
            best.picked_s = 0.0
        self.running = best
        self._schedule()

    def _schedule(self) -> None:
        """When something happens next."""
        thread = self.running
        ends = self.now + thread.burst_left_s if thread and thread.burst else math.inf
        timers = (min(t.refill_at, t.wake_at) for t in self.threads)
        self.event_at = min(self.tick_at, ends, *timers)

    def _place(self, thread: Thread) -> None:
        """A thread that comes back has credit for one slice at most."""
        others = [t for t in self.threads if t.runnable and not t.throttled and t is not thread]
        least = min((t.vruntime for t in others), default=thread.vruntime)
        thread.vruntime = max(thread.vruntime, least - SLICE_S)

    def _event(self) -> None:
        self._account()
        now, current = self.now + 1e-9, self.running
        pick = current is None
        for thread in self.threads:
            if thread.refill_at <= now:
                self._refill(thread)
            if thread.wake_at <= now:
                thread.wake_at, thread.runnable = math.inf, True
                self._place(thread)
                if thread.burst:
                    thread.burst_left_s = thread.burst(self.draw)[0]
                if current and current.vruntime - thread.vruntime > WAKEUP_S / thread.weight:
                    pick = True
        if self.tick_at <= now:
            self.tick_at += self.tick_s
            if current and current.left_s <= 0.0:
                current.throttled = pick = True
            pick = pick or bool(current and current.picked_s >= SLICE_S)
        if current and current.burst and current.burst_left_s <= 1e-9:
            current.runnable, pick = False, True
            current.wake_at = self.now + current.burst(self.draw)[1]
        if pick:
            self._pick()
        else:
            self._schedule()

    def _refill(self, thread: Thread) -> None:
        thread.refill_at += thread.period_s
        thread.left_s = min(thread.left_s, 0.0) + thread.quota_s
        if thread.throttled and thread.left_s > 0.0:
            thread.throttled = False
            self._place(thread)
