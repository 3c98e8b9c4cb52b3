"""The guard as a process of its own, on this machine's cgroups; no libvirt and no guests.

Sleeping processes stand in for vCPU threads: what matters here is what the kernel accepts.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import amp_nova
from amp_nova.guard import record
from amp_nova.guard.kernel import started
from amp_nova.guard.record import Domain, State, Vcpu
from amp_nova.model.bandwidth import Bandwidth, SafeState
from tests.lab import until

CPU = Path("/sys/fs/cgroup/cpu")
SLOW, FAST = Bandwidth(10_000, 20_000), Bandwidth(5_000, 20_000)

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (CPU / "cpu.shares").exists() or {0, 1} - os.sched_getaffinity(0),
    reason="needs root, CPUs 0 and 1, and the cpu controller of cgroup version 1",
)


class Stand:
    """A stand-in for a domain of one vCPU, in a group of its own."""

    def __init__(self, name):
        self.group = CPU / f"amp-test-{os.getpid()}-{name}"
        self.vcpu = self.group / "vcpu0"
        self.vcpu.mkdir(parents=True)
        self.process = subprocess.Popen(["sleep", "300"])
        self.task = f"/proc/{self.process.pid}/task/{self.process.pid}"
        (self.vcpu / "tasks").write_text(str(self.process.pid))

    def recorded(self, safe):
        """Its record: found without a limit and with the usual weight, on both CPUs."""
        vcpu = Vcpu(
            self.task,
            started(self.task),
            str(self.vcpu),
            self.vcpu.stat().st_ino,
            1,
            frozenset({0, 1}),
            State(None, frozenset({0, 1})),
            safe,
        )
        process = f"/proc/{self.process.pid}"
        group, inode = str(self.group), self.group.stat().st_ino
        name = self.group.name
        return Domain(
            name, name, "", process, started(process), group, inode, 1024, 5120, {0: vcpu}
        )

    def read(self, name, folder=None):
        return int(((folder or self.vcpu) / name).read_text())

    def limit(self):
        return self.read("cpu.cfs_quota_us"), self.read("cpu.cfs_period_us")

    def set(self, name, value):
        (self.vcpu / name).write_text(str(value))

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def stands():
    """A booked domain and one of best effort."""
    made = [Stand("booked"), Stand("victim")]
    yield made
    for stand in made:
        stand.end()
        until(lambda s=stand: not (s.vcpu / "tasks").read_text(), 10, "the end of the process")
        stand.vcpu.rmdir()
        stand.group.rmdir()


@pytest.fixture
def guard(tmp_path, stands):
    """Starts the guard over the records of both, with a lease that has expired."""
    booked, victim = stands
    limits = ((frozenset({1}), SLOW), (frozenset({0}), FAST))
    folder = tmp_path / record.FOLDER
    record.save(folder, booked.recorded(SafeState(frozenset({1}), limits)))
    record.save(folder, victim.recorded(SafeState()))
    started = []

    def start():
        command = [sys.executable, "-sSP", "-m", "amp_nova.guard", "--state-path", tmp_path]
        env = {"PYTHONPATH": str(Path(amp_nova.__file__).parents[1])}
        started.append(subprocess.Popen(command, env=env))
        return started[0]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "left", [(-1, 100_000), (5_000, 20_000), (10_000, 20_000), (7_000, 50_000)]
)
@pytest.mark.parametrize("place", [{0}, {1}, {0, 1}])
@pytest.mark.fault("agent killed, whatever it left", "the safe state follows")
def test_whatever_a_killed_agent_left_the_safe_state_follows(stands, guard, left, place):
    """Limit by core type, also after a move; weight; the end with the domains."""
    booked, victim = stands
    quota, period = left
    booked.set("cpu.cfs_period_us", period)
    booked.set("cpu.cfs_quota_us", quota)
    if quota > 0:
        booked.set("cpu.cfs_burst_us", quota)
    os.sched_setaffinity(booked.process.pid, place)
    os.sched_setaffinity(victim.process.pid, {0})

    process = guard()

    right = (5_000, 20_000) if place == {0} else (10_000, 20_000)
    there = {0} if place == {0} else {1}

    def safe():
        weight, pid = booked.read("cpu.shares", booked.group), booked.process.pid
        return (booked.limit(), weight, os.sched_getaffinity(pid)) == (right, 5120, there)

    until(safe, 30, "limit, weight and place")
    until(lambda: os.sched_getaffinity(victim.process.pid) == {0, 1}, 30, "the affinity found")

    other = {1} if place == {0} else {0}
    os.sched_setaffinity(booked.process.pid, other)
    right = (5_000, 20_000) if other == {0} else (10_000, 20_000)
    until(lambda: booked.limit() == right, 30, "the limit after a move")
    booked.set("cpu.cfs_quota_us", 7_000)  # as a write that comes too late
    until(lambda: booked.limit() == right, 30, "the limit after a late write")

    for stand in stands:
        stand.end()
    assert process.wait(30) == 0
