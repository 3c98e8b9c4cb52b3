"""A kernel's bandwidth control as a model, for tests of what is timed to the millisecond."""

MS = 1_000_000
SECOND = 1000 * MS
TICK_NS = 4 * MS


class Kernel:
    """A MODEL of one vCPU under a limit: charged at ticks, refilled as periods begin."""

    def __init__(self, limit, tick_ns=0, begin_ns=0, naps=None, pace=None):
        """``naps``: it runs and sleeps so many nanoseconds in turns; else it always runs.

        ``pace``: instructions per nanosecond at a time, which holds for a millisecond.
        """
        self.limit, self.tick_ns, self.begin_ns, self.naps = limit, tick_ns, begin_ns, naps
        self.pace, self.instructions, self.looks = pace, 0.0, 0
        self.now_ns = self.run_ns = self.charged_ns = self.periods = 0
        self.left_ns, self.stopped = limit.quota_us * 1000, False

    def _wants(self):
        return self.naps is None or self.now_ns % (2 * self.naps) < self.naps

    def _next(self, every_ns, phase_ns):
        return self.now_ns + every_ns - (self.now_ns - phase_ns) % every_ns

    def until(self, time_ns):
        """Let time pass."""
        period_ns = self.limit.period_us * 1000
        while self.now_ns < time_ns:
            tick, begin = self._next(TICK_NS, self.tick_ns), self._next(period_ns, self.begin_ns)
            turn = self._next(self.naps, 0) if self.naps else time_ns
            change = self._next(MS, 0) if self.pace else time_ns
            then_ns = min(time_ns, tick, begin, turn, change)
            if self._wants() and not self.stopped:
                self.run_ns += then_ns - self.now_ns
                if self.pace:
                    self.instructions += self.pace(self.now_ns) * (then_ns - self.now_ns)
            self.now_ns = then_ns
            if then_ns == tick:
                self.charge()
            if then_ns == begin:
                self._refill()

    def _refill(self):
        self.charge()
        quota_ns = self.limit.quota_us * 1000
        if self._wants() or self.stopped:
            self.periods += 1
        self.left_ns = min(quota_ns, self.left_ns + quota_ns)
        self.stopped = self.left_ns <= 0

    def charge(self):
        """Take what it ran off what it has left."""
        self.left_ns -= self.run_ns - self.charged_ns
        self.charged_ns = self.run_ns
        self.stopped = self.stopped or self.left_ns <= 0

    def write(self, limit):
        """Another limit: the quota is full again, and debts are forgiven."""
        self.limit, self.left_ns = limit, limit.quota_us * 1000
        self.charged_ns, self.stopped = self.run_ns, False
