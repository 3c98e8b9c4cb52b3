# SPDX-License-Identifier: Apache-2.0
"""Follows a server through a move: CPU time, counted work and limit, on both hosts, every 5 ms."""

import bisect
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from tools.cloud.client import Process, Server
from tools.cloud.layout import HOSTS, Host

PERIOD_S = 0.005
RAN_S = 0.002
"""A vCPU thread that used this much did run its guest; before, QEMU only prepared it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a server's vCPU on one host."""

    time_s: float
    cpu_s: float
    rounds: int
    quota_cores: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """One second of a move; negative numbers are before the arrival."""

    number: int
    delivered_refcores: float
    rounds: int


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Look when it is time: beside spinning guests an ordinary thread would look too late."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


class Track:
    """A context manager; what it saw is there afterwards."""

    def __init__(self, server: Server) -> None:
        self._name = server.domain
        self.samples: dict[str, list[Sample]] = {host.name: [] for host in HOSTS}
        self._processes: dict[str, Process] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with at_once():
            while not self._stop.wait(PERIOD_S):
                for host in HOSTS:
                    self._look(host)

    def _look(self, host: Host) -> None:
        try:
            process = self._processes.get(host.name)
            if process is None:
                process = self._processes[host.name] = Process(host, self._name)
            quota = process.quota_cores()
            sample = Sample(time.monotonic(), process.cpu_s(), process.rounds(), quota)
            self.samples[host.name].append(sample)
        except (OSError, StopIteration, ValueError):
            self._processes.pop(host.name, None)

    def arrived_s(self, host: Host) -> float:
        """When the guest began to run there."""
        first, *rest = self.samples[host.name]
        return next(s.time_s for s in rest if s.cpu_s > first.cpu_s + RAN_S)

    def unlimited_s(self, host: Host) -> float:
        """CPU time that the vCPU used there before it had a limit."""
        first, *rest = self.samples[host.name]
        return (
            max((s.cpu_s for s in rest if s.quota_cores is None), default=first.cpu_s) - first.cpu_s
        )

    def limited_before_s(self, host: Host) -> float:
        """How long before the guest began to run there its limit was in force."""
        limited = (s.time_s for s in self.samples[host.name] if s.quota_cores is not None)
        return self.arrived_s(host) - next(limited)

    def wrong_s(self, host: Host, right_cores: float) -> float:
        """How long after the guest began to run there a limit of another host was in force."""
        arrived_s = self.arrived_s(host)
        wrong = (
            s.time_s
            for s in self.samples[host.name]
            if s.quota_cores is not None and abs(s.quota_cores / right_cores - 1) > 0.01
        )
        return max(0.0, max(wrong, default=arrived_s) - arrived_s)

    def pause_s(self, source: Host, destination: Host) -> float:
        """How long the guest ran nowhere."""
        *before, last = self.samples[source.name]
        ran = next(s.time_s for s in reversed(before) if s.cpu_s < last.cpu_s)
        return self.arrived_s(destination) - ran

    def windows(self, at_s: float, numbers: range, speeds: dict[str, float]) -> list[Window]:
        """Windows of 1 s around a moment; ``speeds``: the coefficient of each host's core."""
        made = []
        for number in numbers:
            refcores = 0.0
            begin, end = self._at(at_s + number), self._at(at_s + number + 1)
            for host in begin.keys() & end.keys():
                refcores += (end[host][0] - begin[host][0]) * speeds[host]
            # One counter, which travels: the host where the guest is not has an older value, or 0.
            rounds = [max((done for _, done in at.values()), default=0) for at in (begin, end)]
            made.append(Window(number, refcores, round(rounds[1] - rounds[0])))
        return made

    def _at(self, time_s: float) -> dict[str, tuple[float, float]]:
        """CPU time and rounds on each host at a moment, between two looks: one may come late."""
        found = {}
        for host, samples in self.samples.items():
            if samples:
                after = bisect.bisect(samples, time_s, key=lambda sample: sample.time_s)
                first, last = samples[max(after - 1, 0)], samples[min(after, len(samples) - 1)]
                apart_s = last.time_s - first.time_s
                ratio = (time_s - first.time_s) / apart_s if apart_s else 0.0
                found[host] = (
                    first.cpu_s + ratio * (last.cpu_s - first.cpu_s),
                    first.rounds + ratio * (last.rounds - first.rounds),
                )
        return found
