# SPDX-License-Identifier: Apache-2.0
"""An agent stopped at every system call of ``apply()``; stand-ins for domains.

The protocol of ``tests/model``, on the real code and real cgroups: the agent is stopped,
its lease expires, the real guard acts, and the agent goes on. And a vCPU is repinned at every
system call of the guard.
"""

import os
import platform
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amp_nova import conf as options
from amp_nova.agent import settings, wiring
from amp_nova.agent.loop import Loop
from amp_nova.guard import __main__ as guard
from amp_nova.guard import lease, record
from amp_nova.host.writer import Writer
from amp_nova.kernel import cgroups
from amp_nova.model.allocation import NOTHING_DONE, Changes, Outcome
from amp_nova.plugins import load_policy
from tests.support.lab import FAST, SLOW, until
from tests.support.ptrace import Traced
from tests.support.stands import Stand, StandHost, why_not

LEASE_S, LEASE_MAX_S = 0.3, 3.0
"""Long enough for one ``apply()`` that is traced; if the machine is too busy, it is tried again."""
LOCK_S = 0.05
"""How long the guard waits for the lock of a stopped agent."""
POLL_S = 0.03
"""Longer than a period of the stand-ins' limits: then the number of calls is always the same."""
AT_ONCE, ATTEMPTS = 12, 20
BEFORE = {
    "booked": ({FAST, SLOW}, -1, 100_000),
    "typed": ({SLOW}, 8_000, 20_000),
    "victim": ({SLOW}, -1, 100_000),
}
"""Affinity, quota and period that the agent finds: it moves and limits, it moves, and it places."""
KINDS = ("resumed", "resumed and killed")

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="ptrace is used as on x86-64"),
    pytest.mark.timeout(600),
]


class Found(NamedTuple):
    """What was found at one system call.

    ``late``: how many limits and affinities changed after the guard had acted; ``wrong``: whether
    these left something unsafe; ``unsafe``: what is unsafe once the guard has polled again.
    """

    reached: bool
    late: int = 0
    wrong: bool = False
    unsafe: str = ""


class Bench:
    """One host of stand-ins, with a decision of a real agent that is applied again and again."""

    def __init__(self, folder: Path) -> None:
        self.here = StandHost(folder)
        self._folder = self.here.state_path / record.FOLDER
        self.reset()
        conf = options.load(files=[str(self.here.config)])
        sensor = wiring.make_sensor(conf)
        self.lease = lease.Lease(self.here.state_path, LEASE_S)
        self.writer: Writer = wiring.make_writer(conf, sensor, self.lease.lost)
        self.changes = Changes()
        loop = Loop(sensor, self, settings.read(conf, dry_run=False), load_policy("acfs"))
        until(lambda: loop.cycle() and len(self.changes.vcpus) == len(BEFORE), 20, "a decision")
        self.calls = len(self.applying().calls)
        """How many system calls ``apply()`` makes."""
        self._records = {path: path.read_bytes() for path in self._folder.iterdir()}

    def apply(self, changes: Changes) -> Outcome:
        """Keep what the loop has decided."""
        self.changes = changes
        return NOTHING_DONE

    def throttle(self, _limits: Any) -> dict[Any, Any]:
        """Nothing here books instructions."""
        return {}

    def reset(self) -> None:
        """Everything as the agent found it, and no records."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for stand in self.here.stands:
            (stand.group / "cpu.shares").write_text("1024")
            pcpus, quota, period = BEFORE[stand.name]
            stand.set("cpu.cfs_quota_us", -1)
            stand.set("cpu.cfs_period_us", period)
            stand.set("cpu.cfs_quota_us", quota)
            os.sched_setaffinity(stand.process.pid, pcpus)

    def applying(self, number: int = 1_000_000) -> Traced:
        """An agent with a lease that is stopped at a system call of ``apply()``, or has ended."""
        for _ in range(ATTEMPTS):
            self.reset()
            self.lease.take()
            agent = Traced(lambda: self.writer.apply(self.changes))
            agent.enter(number)
            if not self.lease.lost():
                return agent
            agent.kill()
            # A busy machine needs longer.
            self.lease.length_s = min(1.5 * self.lease.length_s, LEASE_MAX_S)
        raise AssertionError(f"the machine is too busy for an apply() in {LEASE_MAX_S} s")

    def repinned(self) -> None:
        """No agent, as after ``apply()``; but the booked one was moved to the other core type."""
        self.reset()
        self._folder.mkdir()
        for path, content in self._records.items():
            path.write_bytes(content)
            path.chmod(0o600)
        (self.here.state_path / lease.LEASE).write_text(f"{1:020d}\n")
        self.guard()
        repin(self.here.booked)

    def expire(self) -> None:
        """Wait for the end of the lease."""
        until(lambda: not lease.remaining_s(self.here.state_path), 10, "the end of the lease")

    def guard(self) -> None:
        """The guard polls once."""
        guard.Watch(self.here.state_path).poll()

    def values(self) -> list[object]:
        """Every limit and affinity."""
        return [value for stand in self.here.stands for value in (stand.limit(), stand.place)]

    def unsafe(self) -> str:
        """The stand-ins that are not as they must be without an agent, in words."""
        recorded = dict(record.load_all(self._folder))
        assert not [found for found in recorded.values() if isinstance(found, Exception)]
        names = {found.name for found in recorded.values()}
        wrong = [s for s in self.here.stands if not self._safe(s, s.name in names)]
        return "; ".join(f"{s.name}: {s.limit()} on {set(s.place)}" for s in wrong)

    def _safe(self, stand: Stand, recorded: bool) -> bool:
        if recorded and stand is not self.here.victim:
            return self.here.keeps_booking(stand)
        pcpus, quota, period = BEFORE[stand.name]
        return (stand.place, *stand.limit()) == (pcpus, quota, period)


BENCH: Bench | None = None


def begin(folder: Path) -> None:
    """Set up a worker, which tries one system call after the other."""
    global BENCH
    guard.LOCK_S, cgroups.POLL_S = LOCK_S, POLL_S
    BENCH = Bench(folder / f"{os.getpid()}")


def end(_worker: int) -> None:
    """Clean up in a worker; long enough that each gets one."""
    if BENCH is not None:
        BENCH.here.close()
    time.sleep(1.0)


def count(_worker: int) -> tuple[int, int]:
    """The number of system calls of ``apply()``, and of a guard that has something to do."""
    assert BENCH is not None
    BENCH.repinned()
    polling = Traced(BENCH.guard)
    polling.finish()
    assert polling.status == 0
    return BENCH.calls, len(polling.calls)


def at_call(kind: str, number: int) -> Found:
    """Stop an agent there, let the guard act as if it were dead, and let it go on."""
    bench = BENCH
    assert bench is not None
    agent = bench.applying(number)
    try:
        if agent.status is not None:
            return Found(False)
        bench.expire()
        bench.guard()
        if unsafe := bench.unsafe():
            return Found(True, unsafe=f"before it is resumed, {unsafe}")
        before = bench.values()
        if kind == "resumed":
            agent.finish()
            assert agent.status == 0
        else:
            agent.step()
            agent.kill()
        late = sum(a != b for a, b in zip(before, bench.values(), strict=True))
        wrong = late > 0 and bool(bench.unsafe())
        bench.guard()
        return Found(True, late, wrong, bench.unsafe())
    finally:
        agent.kill()


def repin(stand: Stand) -> None:
    """Somebody moves a stand-in to the other core type."""
    os.sched_setaffinity(stand.process.pid, {SLOW} if stand.place == {FAST} else {FAST})


def at_guards_call(number: int) -> Found:
    """Repin a vCPU there, while the guard restores its limit after an earlier repin."""
    bench = BENCH
    assert bench is not None
    bench.repinned()
    polling = Traced(bench.guard)
    try:
        if not polling.enter(number):
            return Found(False)
        repin(bench.here.booked)
        polling.finish()
        wrong = bool(bench.unsafe())
        bench.guard()
        return Found(True, 0, wrong, bench.unsafe())
    finally:
        polling.kill()


@contextmanager
def workers(folder: Path) -> Iterator[ProcessPoolExecutor]:
    """Processes of one thread each, as ptrace needs."""
    fork = get_context("fork")
    with ProcessPoolExecutor(AT_ONCE, fork, initializer=begin, initargs=(folder,)) as pool:
        try:
            yield pool
        finally:
            list(pool.map(end, range(AT_ONCE)))


@pytest.mark.fault(
    "agent stopped at each system call of apply(), resumed after the guard acted",
    "at most one write comes late, the guard undoes it, and the safe state holds",
)
def test_at_every_system_call(tmp_path, record_property):
    """Of the agent's ``apply()``, and of the guard's poll."""
    with workers(tmp_path) as pool:
        calls, of_guard = pool.submit(count, 0).result()
        tried = {
            kind: list(pool.map(at_call, [kind] * calls, range(1, calls + 1))) for kind in KINDS
        }
        repinned = list(pool.map(at_guards_call, range(1, of_guard + 1)))

    everything = [found for each in tried.values() for found in each] + repinned
    reached = [found for found in everything if found.reached]
    late = {kind: sum(f.late > 0 for f in each) for kind, each in tried.items()}
    wrong = {kind: sum(f.wrong for f in each) for kind, each in tried.items()}
    print(
        f"{calls} system calls of apply(), {of_guard} of the guard; "
        f"with a late write: {late}; which a guard that acts once would leave unsafe: {wrong}; "
        f"repinned during a poll that was too late to notice: {sum(f.wrong for f in repinned)}"
    )
    record_property("times", len(reached))
    assert [found for found in everything if found.unsafe] == []
    assert len(reached) > 0.95 * len(everything)
    assert max(found.late for found in reached) == 1
    assert wrong["resumed and killed"] > 0
