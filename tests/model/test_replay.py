# SPDX-License-Identifier: Apache-2.0
"""Traces of the model on the real guard, writer, records and lease, on a fake host.

The real programs run in threads of which one at a time goes on, to its next call that is a step of
the model. A step that the real program need not take, such as the write of a limit that is in
force, is skipped. After each step what is in force, the record, the lease and the lock must be what
the model says, and a program must end with its model. So a part of the protocol that the product
drops is noticed: that the guard asks before each write, goes on repairing and removes no record;
that the agent checks its lease and its file before each write, respects pauses, records first, and
never revives a lost lease. Not covered: ``amp-nova release`` (``test_guard.py`` has it beside the
guard), two guards, and the lock under which an agent takes a lease.
"""

import contextlib
import os
import random
import threading
import time
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.agent.guarding import Guarding
from amp_nova.guard import __main__ as guard
from amp_nova.guard import lease, locks, record, restore
from amp_nova.guard.pauses import Pauses
from amp_nova.host import writer as writers
from amp_nova.host.machine import OnlineTopology
from amp_nova.host.records import Records
from amp_nova.host.sensor import HostPaths, LibvirtSensor
from amp_nova.host.writer import CgroupBackend, WriteConditions, Writer
from amp_nova.kernel.cgroups import VcpuGroup
from amp_nova.model.allocation import Change, Changes, Outcome
from tests.model import lease_model as model
from tests.support.fakehost import FakeFiles, FakeLibvirt, resource, topology

NAME = "instance-00000001"
KEY = (resource(NAME), 0)
LENGTH_S = 1000.0
"""The length of a lease; from one renewal to the next 1 s passes, unless it expires."""
WALKS, STEPS = 80, 100
EVENTS_SHARE, MANY = 0.15, 1_000_000
"""How much of a walk happens from outside, and no limit on that."""
GUARD = ("record", "alive", "may", "read", "write", "pauses")
AGENT = ("take", "observe", "lock", "pauses", "record", "check", "write", "unlock", "renew", "put")
"""The calls before which the programs stop: what the model has as ``at``."""
TICK = "agent: a tick locks and checks"


class KilledProgramError(BaseException):
    """Ends a program wherever it is; what it holds is freed, as the kernel does."""


class Program(threading.Thread):
    """A program that stops before each of these calls until it may go on. ``at``: the next one."""

    def __init__(self, program, stops):
        super().__init__(target=program, daemon=True)
        self.at, self._stops, self._killed, self._failure = "", stops, False, None
        self._goes, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self.start()
        self._stands.acquire()

    def run(self):
        """Run to the end; a failure is for who made it go on."""
        try:
            super().run()
        except BaseException as exc:  # noqa: BLE001 - raised again in the test's own thread
            self._failure = exc
        self.at = "end"
        self._stands.release()

    def reach(self, label, call, *args, **kwargs):
        """Stop before this call; calls within it are no steps."""
        if label not in self._stops or self._killed:
            return call(*args, **kwargs)
        self.at = label
        self._stands.release()
        self._goes.acquire()
        if self._killed and label != "unlock":
            raise KilledProgramError
        stops, self._stops = self._stops, ()
        try:
            return call(*args, **kwargs)
        finally:
            self._stops = stops

    def go(self):
        """Go on to the next stop."""
        self._goes.release()
        self._stands.acquire()
        if self._failure is not None and not self._killed:
            raise self._failure

    def kill(self):
        """End it without another call."""
        self._killed = True
        if self.at != "end":
            self.go()


def stopping(label, call):
    """A function before which a program stops."""

    def called(*args, **kwargs):
        program = threading.current_thread()
        reach = program.reach if isinstance(program, Program) else lambda _, f, *a, **k: f(*a, **k)
        return reach(label, call, *args, **kwargs)

    return called


@pytest.fixture
def clock(monkeypatch):
    """The clock of the leases, which stands still; system calls are steps, and nothing waits."""
    found = SimpleNamespace(ns=10**12)
    monkeypatch.setattr(time, "monotonic_ns", lambda: found.ns)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(guard, "LOCK_S", 0.0)
    monkeypatch.setattr(guard, "say", lambda _text: None)
    monkeypatch.setattr(locks, "holder", lambda _path: "another")
    monkeypatch.setattr(writers, "at_period_start", lambda keys, act: [act(key) for key in keys])
    for where, name, label in (
        *((record, "load_all", "record"), (record, "save", "record"), (record, "alive", "alive")),
        *((guard.Watch, "_may", "may"), (VcpuGroup, "bandwidth", "read"), (lease, "_put", "put")),
        *((Pauses, "current", "pauses"), (Guarding, "before", "take"), (restore, "_take", "write")),
        *((writers, "_in_force", "check"), (CgroupBackend, "take", "write")),
    ):
        monkeypatch.setattr(where, name, stopping(label, getattr(where, name)))
    return found


class Replay:
    """A fake host on which the real programs do what the model does, step by step."""

    def __init__(self, root, monkeypatch, clock):
        self._state, self._root, self._clock = root / "state", root / "host", clock
        self._state.mkdir(parents=True)
        self._root.mkdir()
        self._host, self._libvirt = FakeFiles(self._root), FakeLibvirt()
        self._host.kernel.pcpus = model.PCPUS[model.BOTH]
        self._host.kernel.install(monkeypatch)
        self._pauses, self._home = Pauses(self._state), model.S
        self._running = {}
        """Each program that runs a cycle or a poll, or has ended it."""
        self._alone = lease.alone(self._state)  # so that the agent starts no other guard
        self._arrive(1)
        self._begin_guard()
        self._begin_agent()

    def close(self):
        """End all programs."""
        self._kill("guard")
        if self._guarding is not None:
            self._kill_agent()
        os.close(self._alone)

    def _begin_agent(self):
        online = OnlineTopology(topology, lambda: model.PCPUS[model.BOTH])
        paths = HostPaths(self._host.run_path, self._root)
        self._sensor = LibvirtSensor(self._libvirt, online, paths)
        self._guarding = Guarding(self._state, LENGTH_S)
        records = Records(self._state, self._sensor)
        self._writer = Writer(
            self._sensor,
            WriteConditions(self._pauses.current, self._lock, records, self._guarding.lost),
        )

    @contextlib.contextmanager
    def _lock(self, wait_s):
        with contextlib.ExitStack() as stack:
            cycle_lock = locks.locked(self._state, locks.CYCLE, wait_s=wait_s)
            stopping("lock", stack.enter_context)(cycle_lock)
            try:
                yield
            finally:
                stopping("unlock", stack.close)()

    def _cycle(self):
        """A cycle of the agent, without a policy."""
        self._guarding.before()
        changes = stopping("observe", self._decided)()
        outcome = Outcome() if changes is None else self._writer.apply(changes)
        after = stopping("renew", lambda: SimpleNamespace(outcome=outcome))()
        self._guarding.after(after)

    def _decided(self):
        self._sensor.reread()
        readings = self._sensor.observe().domains
        if not readings or KEY[0] in self._pauses.current():
            return None
        (vcpu,) = readings[0].vcpus
        now = restore.Tuning(vcpu.bandwidth, vcpu.pcpus)
        home = restore.Tuning(model.LIMITS[self._home], model.PCPUS[self._home])
        changes = tuple(Change(KEY, s) for s in [restore.steps(now, home)] if s)
        return Changes(changes, safe={KEY: model.SAFE[self._home]})

    def take(self, name, before, after):
        """One step of the model, which leads from the first state to the second."""
        self._home, (who, _, what) = before.home, name.partition(": ")
        if not what:
            self._happens(name, after)
        else:
            self._step(who, getattr(before, who).at, name, before)
        self._compare(after)

    def _step(self, who, at, name, before):
        if at == "renew":
            self._clock.ns += 10**9
        if at == "poll":
            self._running[who] = Program(self._watch.poll, GUARD)
        elif name == TICK:
            limits = {KEY: model.LIMITS[before.agent.home]}
            tick = partial(self._writer.throttle, limits)
            self._running[who] = Program(tick, ("write", "unlock"))
        elif at == "take":
            self._running[who] = Program(self._cycle, AGENT)
        program = self._running[who]
        stands = program.at == {"ask": "may"}.get(at, at) and name != TICK
        if stands:
            program.go()
        # The last write of a tick, and the guard's undoing, are one step of the model.
        if at == "tick" or (stands and (who, at) == ("guard", "pauses")):
            while program.at != "end":
                program.go()

    def _happens(self, name, after):
        """Something from outside; the rest needs nothing: what is stopped is not told to go on."""
        expire = partial(setattr, self._clock, "ns", lease.ends_ns(self._state))
        move = partial(
            self._host.kernel.affinity.update, {self._tid: set(model.PCPUS[after.pcpus])}
        )
        able = {
            "the agent is slow": expire,
            "the lease expires": expire,
            "unlink lease": (self._state / lease.LEASE).unlink,
            "repin to F": move,
            "repin to S": move,
            "migrate away": self._leave,
            "migrate back": partial(self._arrive, after.domain),
            "pause": partial(self._pauses.pause, KEY[0], "by a test"),
            "resume": partial(self._pauses.resume, KEY[0]),
            "kill agent": self._kill_agent,
            "restart agent": self._begin_agent,
            "restart guard": self._begin_guard,
        }
        if name in able:
            able[name]()

    def _leave(self):
        self._host.stop(NAME)
        self._libvirt.forget(NAME)

    def _arrive(self, incarnation):
        self._host.start(NAME, vcpus=1, began=incarnation)
        self._libvirt.define(NAME, vcpus=1)
        self._tid = self._host.tid(0)

    def _kill(self, who):
        if program := self._running.pop(who, None):
            program.kill()

    def _begin_guard(self):
        self._kill("guard")
        self._watch = guard.Watch(self._state, str(self._root / "proc"))

    def _kill_agent(self):
        self._kill("agent")
        self._guarding.close()
        self._sensor._forget(KEY[0])
        self._guarding = None

    def _compare(self, s):
        at = {who: program.at for who, program in self._running.items()}
        found = {"valid": bool(lease.remaining_s(self._state)), "locked": self._locked()}
        # Without a record the guard has nothing to do, and ends before its model.
        locked = bool(s.lock) and (s.lock != "guard" or at["guard"] != "end")
        said = {"valid": s.valid, "locked": locked}
        if s.domain != model.GONE:
            found["pcpus"] = self._host.kernel.affinity[self._tid]
            found["limit"] = self._host.limit(NAME)
            limit = model.LIMITS[s.limit]
            said["pcpus"] = model.PCPUS[s.pcpus]
            said["limit"] = "max 100000" if limit is None else "{} {}".format(*limit)
            recorded = record.load(self._state / record.FOLDER, KEY[0])
            here = recorded is not None and recorded.started == str(s.domain)
            found["safe"] = recorded.vcpus[0].safe if here else None
            said["safe"] = model.SAFE[s.record[1]] if s.record[0] == s.domain else None
        for who, ended in (("guard", s.guard.at == "poll"), ("agent", s.agent.at == "take")):
            found[who], said[who] = at.get(who, "end") if ended else "", "end" if ended else ""
        assert found == said

    def _locked(self):
        try:
            with locks.locked(self._state, locks.CYCLE):
                return False
        except locks.Locked:
            return True


@pytest.fixture
def replay(tmp_path, monkeypatch, clock):
    """Takes steps of the model on a new host, each with the states before and after it."""
    numbers = iter(range(WALKS))

    def taken(steps):
        names, root = [], tmp_path / str(next(numbers))
        with contextlib.closing(Replay(root, monkeypatch, clock)) as host:
            try:
                for name, before, after in steps:
                    names.append(name)
                    host.take(name, before, after)
            except BaseException:
                print("\n".join(names))
                raise

    return taken


def walk(rng, seen):
    """A walk through the model that goes where walks have been the least."""
    s = model.State()
    for _ in range(STEPS):
        ways = list(model.alone(s))
        if not ways or rng.random() < EVENTS_SHARE:
            ways = list(model.environment(s, MANY))
        if s.limit == s.agent.home:  # then a tick writes nothing
            ways = [way for way in ways if way[0] != TICK] or ways
        counts = {way: seen[way[0], s.guard.at, s.agent.at] for way in ways}
        name, after = rng.choice([w for w in ways if counts[w] == min(counts.values())])
        seen[name, s.guard.at, s.agent.at] += 1
        yield name, s, after
        s = after


def test_the_real_programs_do_what_the_model_does(replay):
    """On walks that take each step of the model at many places of the other program."""
    rng, seen = random.Random(1), Counter()
    for _ in range(WALKS):
        replay(walk(rng, seen))

    print(f"{sum(seen.values())} steps, {len(seen)} with other places of the programs")
    assert len(seen) > 500
