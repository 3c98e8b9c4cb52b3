# SPDX-License-Identifier: Apache-2.0
"""Selects how a vCPU's instructions are counted, by its accelerator.

``perf``: the hardware counters of the thread, for guests under KVM. Instructions, cycles and cache
misses; needs a PMU that the host may use. ``tcg``: an installed plugin, for emulated guests. Counts
instructions only, but exactly. Neither replaces the other: under emulation, hardware counters count
the emulator's instructions, not the guest's. If neither works, the reason is reported.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from amp_nova.exceptions import CountersNever, CountersUnavailable
from amp_nova.host.counters import perf
from amp_nova.host.counters.perf_vcpu import PerfCounter
from amp_nova.model.observation import Counts
from amp_nova.plugins import emulated_counter

PERF, TCG, NONE = "perf", "tcg", "none"


class Counter(Protocol):
    """A counter of one vCPU. ``note``: its limitations, ``None`` if there are none."""

    @property
    def source(self) -> str: ...

    @property
    def note(self) -> str | None: ...

    def read(self) -> Counts | None:
        """Counts since it was opened; ``None`` if there are none at the moment."""

    def close(self) -> None:
        """Close its descriptors."""


class Counters:
    """Opens the counters of this host's vCPUs; what cannot be opened is tried again."""

    def __init__(self, root: Path = Path("/"), retry_s: float = 30.0) -> None:
        self.retry_s = retry_s
        self._root = root

    def open(self, pid: int, tid: int, index: int, emulated: bool) -> Counter:
        """The counter of one vCPU of the QEMU process ``pid``; ``emulated``: not under KVM.

        Raises ``CountersUnavailable`` with a message for operators, and ``CountersNever`` if
        retrying does not help.
        """
        if emulated:
            counter: Counter = emulated_counter()(self._root, pid, tid, index)
            return counter
        if (reason := perf.mediated(self._root)) is not None:
            raise CountersUnavailable(reason)
        return PerfCounter(tid, perf.pmus(self._root), root=self._root)


class VcpuCounts:
    """One vCPU's counter, reopened after failures.

    A counter that cannot be opened is retried after ``retry_s`` seconds.
    """

    __slots__ = ("_clock", "_counter", "_opener", "_retry_at_s", "_retry_s", "failure")

    def __init__(
        self,
        opener: Callable[[], Counter],
        retry_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failure: str | None = None
        """Why nothing is counted, ``None`` if something is."""
        self._opener = opener
        self._retry_s = retry_s
        self._clock = clock
        self._retry_at_s = 0.0
        self._counter: Counter | None = None

    @property
    def state(self) -> tuple[str, str]:
        """The source (``none`` if nothing counts), and a reason or note, which may be empty."""
        if self.failure is not None or self._counter is None:
            return NONE, self.failure or ""
        return self._counter.source, self._counter.note or ""

    def read(self) -> Counts | None:
        """Counts so far, ``None`` with the reason in ``failure`` if there are none."""
        if self._counter is None and not self._open():
            return None
        assert self._counter is not None
        try:
            counts = self._counter.read()
        except (CountersUnavailable, OSError) as exc:
            self._lose(exc, 0.0)  # reopen at the next reading
            return None
        self.failure = self._counter.note if counts is None else None
        return counts

    def _open(self) -> bool:
        if self.failure is not None and self._clock() < self._retry_at_s:
            return False
        try:
            self._counter = self._opener()
        except (CountersUnavailable, OSError) as exc:
            self._lose(exc, math.inf if isinstance(exc, CountersNever) else self._retry_s)
            return False
        return True

    def _lose(self, exc: Exception, retry_s: float) -> None:
        unavailable = isinstance(exc, CountersUnavailable)
        self.failure = str(exc) if unavailable else f"the counter failed: {exc}"
        self._retry_at_s = self._clock() + retry_s
        self.close()

    def close(self) -> None:
        """Close the counter; the next reading opens it again."""
        if self._counter is not None:
            self._counter.close()
            self._counter = None

    def end(self) -> None:
        """Close the counter for good; later readings return ``None``."""
        self._lose(CountersNever("its vCPU no longer exists"), math.inf)
