# SPDX-License-Identifier: Apache-2.0
"""An agent killed at each of its writes, or without space for them; stand-ins for domains.

strace ends the agent as it enters a system call, or makes that fail: the n-th ``write``, the n-th
``sched_setaffinity`` and so on of a run that begins with limits and places of somebody else's, and
in which somebody else changes some.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from amp_nova.guard import lease, record
from tests.support import fault_table
from tests.support.lab import FAST, SLOW, until
from tests.support.stands import Stand, StandHost, host, why_not

WRITES = "write,pwrite64,sched_setaffinity,fsync,rename,unlink,mkdir"
POINTS, SEEDS = 50, range(5)
POINTS_OF_MANY = 5
"""In a run of all tests; ``-m fault`` takes all of them."""
ROUNDS = 3
"""So many times somebody else changes something: as often as an agent repairs it in a minute."""
AT_ONCE = 5
LEASE_S, CYCLE_S = 1.0, 0.1
LATE_S = 10.0
"""How much later a loaded machine may do what is due."""
PATIENCE_S = 60.0
LEFT = [(-1, 100_000), (7_000, 50_000), (30_000, 100_000)]
"""Limits that there may be before the agent comes."""

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.timeout(3000),
]
Point = tuple[str, int]


class Run:
    """One host of stand-ins with the agent that is to be killed."""

    def __init__(self, here: StandHost, seed: int) -> None:
        self.here, self._rng = here, random.Random(seed)
        for stand in here.stands:
            quota, period = self._rng.choice(LEFT) if stand is here.victim else LEFT[0]
            stand.set("cpu.cfs_period_us", period)
            stand.set("cpu.cfs_quota_us", quota)
            os.sched_setaffinity(stand.process.pid, self._rng.choice([{FAST}, {SLOW}, {0, 1}]))
        self._found = {stand.name: stand.state() for stand in (*here.stands, here.stranger)}
        self._meddled = 0
        self._low_s: dict[str, float] = {}
        """Since when a stand-in has less than it may have."""
        self.longest_low_s = 0.0

    def meddle(self) -> None:
        """Whenever the agent is in control, change a limit, a place and a weight."""
        if self._meddled < ROUNDS and self.here.controlled():
            self._meddled += 1
            booked, typed, victim = self.here.stands
            os.sched_setaffinity(booked.process.pid, {FAST})
            typed.set("cpu.cfs_quota_us", self._rng.choice([-1, 30_000]))
            (victim.group / "cpu.shares").write_text("2048")

    @property
    def over(self) -> bool:
        """Whether all there is to do was done: what was meddled with is repaired."""
        return self._meddled == ROUNDS and self.here.controlled()

    def look(self) -> None:
        """What must never be: too little for too long, or a change of what is not ours."""
        now_s = time.monotonic()
        here = self.here
        assert here.stranger.state() == self._found["stranger"]
        low = {
            "booked": here.booked.capacity < 0.5 * 0.5,
            "typed": here.typed.capacity < 0.5 * 0.4,
        }
        for name, is_low in low.items():
            if not is_low:
                self._low_s.pop(name, None)
                continue
            since_s = self._low_s.setdefault(name, now_s)
            self.longest_low_s = max(self.longest_low_s, now_s - since_s)

    def as_found(self, stand: Stand) -> bool:
        """Whether nobody has touched a stand-in, or what was done is undone."""
        return stand.state() == self._found[stand.name]

    def safe(self) -> bool:
        """Whether what must hold without an agent holds, by stand-in; or nothing was begun."""
        here = self.here
        held = {
            here.booked: here.keeps_booking(here.booked),
            here.typed: here.keeps_booking(here.typed),
            here.victim: here.victim.place in ({FAST, SLOW}, self._found["victim"][1]),
        }
        return all(is_held or self.as_found(stand) for stand, is_held in held.items())

    def recorded(self) -> bool:
        """Whether everything that was changed has a record, which can be read."""
        records = dict(record.load_all(self.here.state_path / record.FOLDER))
        assert not [found for found in records.values() if isinstance(found, Exception)]
        names = {found.name for found in records.values()}
        return all(s.name in names or self.as_found(s) for s in self.here.stands)


def watch(run: Run, process: "subprocess.Popen[bytes]") -> None:
    """Look on until the agent has ended or has nothing more to do."""
    end = time.monotonic() + PATIENCE_S
    while process.poll() is None and not run.over:
        assert time.monotonic() < end, f"it goes on: {run.here.log.read_text()[-2000:]}"
        run.meddle()
        run.look()
        time.sleep(0.01)


def strace(trace: Path, *inject: str) -> list[str]:
    """The command that traces the agent's main thread, and changes what it asks for."""
    return ["strace", "-o", str(trace), "-e", f"trace={WRITES}", *inject]


def calls(folder: Path, seed: int) -> list[Point]:
    """Every write of a run in which nothing is injected, by name and number."""
    with host(folder / f"dry-{seed}") as here:
        trace = folder / f"trace-{seed}"
        run = Run(here, seed)
        process = here.begin(*strace(trace))
        try:
            watch(run, process)
        finally:
            kill_traced(process)
    names = re.findall(r"^(\w+)\(", trace.read_text(), re.MULTILINE)
    counted: Counter[str] = Counter()
    points = []
    for name in names:
        counted[name] += 1
        points.append((name, counted[name]))
    return points


def chosen(points: list[Point], seed: int, count: int) -> list[Point]:
    """As many of them as are wanted, spread over the whole run."""
    rng = random.Random(seed)
    return sorted(rng.sample(points, count)) if len(points) > count else points


def kill_traced(strace_process: "subprocess.Popen[bytes]") -> None:
    """Kill what strace traces, which is its child, unless that has ended; strace ends with it."""
    if strace_process.poll() is None:
        pid = strace_process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        with contextlib.suppress(ProcessLookupError):
            for child in children:  # none if it ends just now
                os.kill(int(child), signal.SIGKILL)
        strace_process.wait(PATIENCE_S)


def killed(folder: Path, seed: int, point: Point) -> tuple[float, float]:
    """Kill an agent there; seconds until the safe state, and of too little capacity at most."""
    name, number = point
    inject = ("-e", f"inject={name}:signal=KILL:when={number}")
    with host(folder / f"{seed}-{name}-{number}") as here:
        run = Run(here, seed)
        process = here.begin(*strace(folder / f"trace-{seed}-{name}-{number}", *inject))
        try:
            watch(run, process)
        finally:
            kill_traced(process)  # this time it may have needed fewer writes of this kind
        died_s = time.monotonic()
        assert run.recorded()
        while not run.safe():
            run.look()
            assert time.monotonic() < died_s + PATIENCE_S, [s.state() for s in here.stands]
            time.sleep(0.01)
        took_s = time.monotonic() - died_s
        run.look()

        # It does not stay down: the next one takes over what it finds.
        ended_ns = lease.ends_ns(here.state_path)
        following = here.begin()
        until(
            lambda: lease.ends_ns(here.state_path) > ended_ns and here.controlled(),
            PATIENCE_S,
            "the next agent's control",
        )
        run.look()
        following.terminate()
        assert following.wait(PATIENCE_S) == 0, here.log.read_text()
        return took_s, run.longest_low_s


@pytest.mark.fault(
    "agent killed at each of its writes",
    "bookings hold within lease + 2 cycles, the next agent takes over",
)
@pytest.mark.parametrize("seed", SEEDS)
def test_killed_at_a_write(request, tmp_path, record_property, seed):
    """At 50 of the writes of a run."""
    count = POINTS if fault_table.alone(request.config) else POINTS_OF_MANY
    points = chosen(calls(tmp_path, seed), seed, count)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda point: killed(tmp_path, seed, point), points))

    took_s, low_s = (max(column) for column in zip(*found, strict=True))
    record_property("times", len(found))
    record_property("recovery_s", took_s)
    print(f"{len(found)} kills; safe after {took_s:.2f} s, too little for {low_s:.2f} s at most")
    assert len(found) == count
    assert low_s < LEASE_S + 2 * CYCLE_S + LATE_S
