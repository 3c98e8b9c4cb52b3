"""Gives a vCPU CPU time in portions, so that it retires what it books to the instruction.

``core.budget`` says how much and when. To everybody else the vCPU has the limit that it would have
without: the one which was in force before, or was asked for since. That is written when portions
end, unless somebody else has written something.
"""

import contextlib
import threading
import time

from amp_nova.core import budget as budgets
from amp_nova.core.budget import Budget, Phase
from amp_nova.core.capacity import Bandwidth
from amp_nova.core.charge import Look
from amp_nova.exceptions import ActuationFailed
from amp_nova.host.watched import UNLIMITED_NS, Watched, Where

REST_NS = 500_000_000
"""A vCPU that does not use its budget up is left alone for so long, and longer every time."""
RESTS_MAX = 6
WANTS_RATIO = 0.5
"""After that it is given portions again if it used this part of its limit meanwhile."""


class Rationed(Watched):
    """One vCPU that books Ips; every method raises ``OSError`` once it has gone."""

    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self.group.wary = True
        self._lock = threading.Lock()
        self._budget: Budget | None = None
        self._limit: Bandwidth | None = None
        self._portions: tuple[Bandwidth, ...] = ()
        """The portion in force and the one before, which somebody may have read just now."""
        self._left = (self.due_ns, -1)
        self._rests = 0

    def close(self) -> None:
        """Give it its limit back, and the descriptors."""
        with self._lock, contextlib.suppress(OSError):
            self._end()
        super().close()

    @property
    def active(self) -> bool:
        """Whether it is given portions now."""
        return self._budget is not None

    def look(self) -> None:
        """Charge it, give it the next portion if it is time, and say when to look again."""
        with self._lock:
            if self._budget is None:
                self._begin()
            else:
                self._go_on(self._budget)

    def stands_for(self, found: Bandwidth | None) -> Bandwidth | None:
        """The limit that a limit found stands for: another one if it is a portion."""
        with self._lock:
            return self._limit if found in self._portions else found

    def take(self, limit: Bandwidth | None) -> bool:
        """Whether another limit need not be written, since there are portions in its place."""
        with self._lock:
            if limit is None or self._budget is None or not self._ours():
                self._budget, self._portions = None, ()
                return False
            self._limit = limit
            return True

    def _ours(self) -> bool:
        return bool(self._portions) and self.group.bandwidth() == self._portions[0]

    def _begin(self) -> None:
        """Begin to give portions, if it has a limit that it uses up."""
        now_ns, run_ns, limit = time.monotonic_ns(), self.charge(), self.group.bandwidth()
        before_ns, ran_ns = self._left
        self._left = (now_ns, run_ns)
        if limit is None or self.where.ips is None:
            self.due_ns = now_ns + UNLIMITED_NS
            return
        wanted = ran_ns < 0 or run_ns - ran_ns >= WANTS_RATIO * limit.cores * (now_ns - before_ns)
        if not wanted:
            self._rest(now_ns)
            return
        self._limit = limit
        self._give(budgets.begin(self.where.ips, limit, now_ns))

    def _go_on(self, budget: Budget) -> None:
        run_ns = self.charge()
        counted = self.where.instructions() if self.where.instructions else None
        now_ns = time.monotonic_ns()
        if counted is not None:
            periods = self.group.periods() if budget.phase is Phase.PERIOD else 0
            budget = budgets.after(budget, Look(now_ns, run_ns, periods, counted))
        if counted is None or budget.phase is Phase.OVER:
            self._end()
            self._left = (now_ns, run_ns)
            self._rest(now_ns)
            return
        if budget.phase is not Phase.PERIOD and not budget.misses:
            self._rests = 0
        if budget.write and not self._ours():  # somebody else has written a limit
            self._portions, self._budget = (), None
            self._rest(now_ns)
            return
        self._give(budget)

    def _give(self, budget: Budget) -> None:
        if budget.write:
            self._portions = (budget.portion, *self._portions[:1])
            try:
                self.group.set_bandwidth(budget.portion)
            except (ActuationFailed, PermissionError):  # the next cycle finds that out and tells
                self._end()
                self._rest(time.monotonic_ns())
                return
        self._budget, self.due_ns = budget, budget.due_ns

    def _rest(self, now_ns: int) -> None:
        self.due_ns = now_ns + (REST_NS << min(self._rests, RESTS_MAX))
        self._rests += 1

    def _end(self) -> None:
        """Write the limit that portions stand for, unless somebody else has written one."""
        ours, self._budget = self._ours(), None
        self._portions = ()
        if ours and self._limit is not None:
            with contextlib.suppress(ActuationFailed, PermissionError):  # the next cycle sees it
                self.group.set_bandwidth(self._limit)
