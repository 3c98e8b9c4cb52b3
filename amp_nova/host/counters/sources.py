"""What counts a vCPU's instructions: chosen by what runs it, and what is to be had.

``perf``: the hardware counters of its thread, for guests under KVM. Instructions, cycles, cache
misses; needs a PMU that the host may use. ``tcg``: a plugin of QEMU, for emulated guests, exact but
instructions only. Neither can stand in for the other: hardware counters see the emulator's
instructions, not the guest's. Else nothing counts, and a reason is given.
"""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from amp_nova.exceptions import CountersNever, CountersUnavailable
from amp_nova.host.counters import perf
from amp_nova.host.counters.perf_vcpu import PerfCounter
from amp_nova.host.counters.tcg import TcgCounter
from amp_nova.model.observation import Counts

AUTO, PERF, TCG, NONE = SOURCES = ("auto", "perf", "tcg", "none")
EMULATED = "TCG"


class Counter(Protocol):
    """Counts one vCPU."""

    @property
    def source(self) -> str:
        """What counts: ``perf`` or ``tcg``."""
        ...

    @property
    def note(self) -> str | None:
        """What it cannot do here, if anything."""
        ...

    def read(self) -> Counts | None:
        """Everything so far, since the guest or the counter began.

        ``None`` while the latest part is not known, for the reason in ``note``;
        ``CountersUnavailable`` when the counter is of no use any more.
        """
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Counters:
    """Opens counters of vCPUs, as configured."""

    def __init__(self, source: str = AUTO, root: Path = Path("/"), retry_s: float = 30.0) -> None:
        self.retry_s = retry_s
        self._source = source
        self._root = root

    def open(self, pid: int, tid: int, index: int, accelerator: str) -> Counter:
        """The counter of one vCPU of the QEMU process ``pid``.

        ``accelerator``: what runs the vCPU, as QEMU names its thread, ``KVM`` or ``TCG``. Raises
        ``CountersUnavailable``, with a sentence for operators.
        """
        if self._source == NONE:
            raise CountersNever("[counters] source is none")
        if accelerator == EMULATED:
            if self._source == PERF:
                raise CountersNever(
                    "it is emulated, and hardware counters see the emulator's instructions:"
                    " set [counters] source to auto or tcg"
                )
            return TcgCounter(self._root, pid, index)
        if self._source == TCG:
            raise CountersNever(
                "it is not emulated: set [counters] source to auto or perf to count it"
            )
        if (handed_out := perf.mediated(self._root)) is not None:
            raise CountersUnavailable(handed_out)
        return PerfCounter(tid, perf.pmus(self._root), root=self._root)


class VcpuCounts:
    """One vCPU's counter through its life: what fails is tried again after a while.

    Any thread may read.
    """

    def __init__(
        self,
        opener: Callable[[], Counter],
        retry_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failure: str | None = None
        """Why nothing is counted now."""
        self._opener = opener
        self._retry_s = retry_s
        self._clock = clock
        self._retry_at_s = 0.0
        self._counter: Counter | None = None
        self._lock = threading.RLock()

    @property
    def state(self) -> tuple[str, str]:
        """What counts, and what there is to say about it; empty when all is well."""
        if self.failure is not None or self._counter is None:
            return NONE, self.failure or ""
        return self._counter.source, self._counter.note or ""

    def read(self) -> Counts | None:
        """Counts so far, or ``None`` with a reason in ``failure``."""
        with self._lock:
            if self._counter is None and not self._open():
                return None
            assert self._counter is not None
            try:
                counts = self._counter.read()
            except (CountersUnavailable, OSError) as exc:
                self._lose(exc, 0.0)  # a new one may do
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
        known = isinstance(exc, CountersUnavailable)
        self.failure = str(exc) if known else f"the counter fails: {exc}"
        self._retry_at_s = self._clock() + retry_s
        self.close()

    def close(self) -> None:
        """Give the counter back."""
        with self._lock:
            if self._counter is not None:
                self._counter.close()
                self._counter = None

    def end(self) -> None:
        """Give the counter back for good, whoever still asks."""
        with self._lock:
            self._lose(CountersNever("its vCPU has gone"), math.inf)
