"""Charges vCPUs for their CPU time at the moment when their quota ends (``core.charge``).

Those that book Ips are then given what they lack to the instruction (``rationing``).

The looks have a thread of their own: cycles and waits of the agent are longer than a millisecond.
"""

import contextlib
import heapq
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping

from amp_nova.core import charge
from amp_nova.core.capacity import Bandwidth
from amp_nova.core.charge import Look, Mode, Track
from amp_nova.core.observation import VcpuKey
from amp_nova.host.rationing import Rationed
from amp_nova.host.watched import UNLIMITED_NS, Watched, Where

LOG = logging.getLogger(__name__)
SWITCH_S = 0.0001
"""The most that other threads of the agent may go on when a look is due; Python's own is 5 ms."""


class _Charged(Watched):
    """One vCPU that is charged; every method raises ``OSError`` once it has gone."""

    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self._track: Track | None = None

    def look(self) -> None:
        """Charge it, take note of what that shows, and say when to look again."""
        limit, track = self.group.bandwidth(), self._track
        if limit is None:
            self._track, self.due_ns = None, time.monotonic_ns() + UNLIMITED_NS
            return
        if track is None:
            track = Track(limit)
        elif track.limit != limit:
            track = charge.limited(track, limit, time.monotonic_ns())
        self._track = charge.after(track, self._charged(track.mode))
        self.due_ns = self._track.due_ns

    def rest(self, wanted: Bandwidth) -> Bandwidth | None:
        """What a lower limit leaves of the period under way (``charge.rest``); for any thread."""
        track = self._track
        return None if track is None else charge.rest(track, self._charged(track.mode), wanted)

    def _charged(self, mode: Mode) -> Look:
        run_ns = self.charge()
        periods = self.group.periods() if mode is Mode.PERIOD else 0
        return Look(time.monotonic_ns(), run_ns, periods)


class Charger:
    """A thread that charges vCPUs, those that ``follow`` named last."""

    def __init__(self) -> None:
        self._vcpus: dict[VcpuKey, _Charged | Rationed] = {}
        self._wanted: Mapping[VcpuKey, Where] = {}
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._refused = self._stopped = self._hurried = False
        self.looks = 0

    def follow(self, vcpus: Mapping[VcpuKey, Where]) -> None:
        """Charge these from now on, and no others."""
        if self._refused or vcpus == self._wanted:
            return
        with self._news:
            self._wanted = vcpus
            self._news.notify()
        if self._thread is None:
            scheduling = os.sched_getscheduler(0), os.sched_getparam(0)
            self._thread = threading.Thread(target=self._run, args=scheduling, daemon=True)
            self._thread.start()

    def rest(self, key: VcpuKey, wanted: Bandwidth) -> Bandwidth | None:
        """What to write at once on the way to a lower limit, if anything (``charge.rest``)."""
        vcpu = self._vcpus.get(key)
        try:
            return vcpu.rest(wanted) if isinstance(vcpu, _Charged) else None
        except (OSError, ValueError):  # it went
            return None

    def rationed(self) -> Collection[VcpuKey]:
        """The vCPUs that are given portions in place of a limit at present."""
        vcpus = list(self._vcpus.items())
        return {key for key, v in vcpus if isinstance(v, Rationed) and v.active}

    def stands_for(self, key: VcpuKey) -> Callable[[Bandwidth | None], Bandwidth | None] | None:
        """Says what a limit found stands for; ``None`` where it is just that."""
        vcpu = self._vcpus.get(key)
        return vcpu.stands_for if isinstance(vcpu, Rationed) else None

    def take(self, key: VcpuKey, limit: Bandwidth | None) -> bool:
        """Whether another limit need not be written, since there are portions in its place."""
        vcpu = self._vcpus.get(key)
        try:
            return isinstance(vcpu, Rationed) and vcpu.take(limit)
        except (OSError, ValueError):  # it went
            return False

    def hurry(self) -> None:
        """Look at all of them now: a limit was written."""
        with self._news:
            self._hurried = True
            self._news.notify()

    def stop(self) -> None:
        """End the thread."""
        with self._news:
            self._stopped = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self, policy: int, priority: os.sched_param) -> None:
        # The unit keeps its real-time priority from threads that it starts, as from programs.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, priority)
        sys.setswitchinterval(SWITCH_S)
        due: list[tuple[int, VcpuKey]] = []
        wanted: Mapping[VcpuKey, Where] = {}
        while True:
            with self._news:
                if not (self._stopped or self._hurried) and wanted is self._wanted:
                    self._news.wait(_until_s(due))
                if self._stopped:
                    break
                changed, wanted = wanted is not self._wanted, self._wanted
                hurried, self._hurried = self._hurried, False
            if changed:
                self._match(wanted)
            if changed or hurried:
                due = [(0 if hurried else v.due_ns, key) for key, v in self._vcpus.items()]
                heapq.heapify(due)
            while due and due[0][0] <= time.monotonic_ns():
                _, key = heapq.heappop(due)
                if self._look(key):
                    heapq.heappush(due, (self._vcpus[key].due_ns, key))
        self._match({})

    def _look(self, key: VcpuKey) -> bool:
        """Look at one vCPU; whether there is any sense in looking again."""
        self.looks += 1
        try:
            self._vcpus[key].look()
        except PermissionError as exc:
            LOG.warning("small limits are kept by the kernel's tick alone: nice value: %s", exc)
            self._refused, self._wanted = True, {}
        except (OSError, ValueError):  # it went; the cycle finds that out
            self._vcpus.pop(key).close()
        except Exception:  # a wrong decision about one must not end the thread of all of them
            LOG.exception("the limit of %s vCPU %d is kept by the kernel's tick alone", *key)
            self._vcpus.pop(key).close()
        return key in self._vcpus and not self._refused

    def _match(self, wanted: Mapping[VcpuKey, Where]) -> None:
        """Let go of vCPUs that are not wanted any longer, and take up new ones."""
        for key in [k for k, v in self._vcpus.items() if wanted.get(k) != v.where]:
            self._vcpus.pop(key).close()
        for key in wanted.keys() - self._vcpus.keys():
            with contextlib.suppress(OSError):
                kind = _Charged if wanted[key].ips is None else Rationed
                self._vcpus[key] = kind(wanted[key])


def _until_s(due: list[tuple[int, VcpuKey]]) -> float | None:
    return max(0.0, (due[0][0] - time.monotonic_ns()) / 1e9) if due else None
