# SPDX-License-Identifier: Apache-2.0
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
from amp_nova.guard.record import RecordedDomain, RecordedVcpu, Tuning
from amp_nova.kernel.threads import started
from amp_nova.model.bandwidth import Bandwidth, SafeState
from tests.support.lab import until
from tests.support.stands import Stand, why_not

SLOW, FAST = Bandwidth(10_000, 20_000), Bandwidth(5_000, 20_000)

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def recorded(stand, safe):
    """A stand-in's record: found without a limit and with the usual weight, on both CPUs."""
    process = f"/proc/{stand.process.pid}"
    task = f"{process}/task/{stand.process.pid}"
    vcpu = RecordedVcpu(
        task,
        started(task),
        str(stand.vcpu),
        stand.vcpu.stat().st_ino,
        1,
        frozenset({0, 1}),
        Tuning(None, frozenset({0, 1})),
        safe,
    )
    group, inode, name = str(stand.group), stand.group.stat().st_ino, stand.group.name
    return RecordedDomain(
        name, name, "", process, started(process), group, inode, 1024, 5120, {0: vcpu}
    )


@pytest.fixture
def stands():
    """A booked domain and one of best effort."""
    made = [Stand("booked"), Stand("victim")]
    yield made
    for stand in made:
        stand.close()


@pytest.fixture
def guard(tmp_path, stands):
    """Starts the guard over the records of both, with a lease that has expired."""
    booked, victim = stands
    limits = ((frozenset({1}), SLOW), (frozenset({0}), FAST))
    folder = tmp_path / record.FOLDER
    record.save(folder, recorded(booked, SafeState(frozenset({1}), limits)))
    record.save(folder, recorded(victim, SafeState()))
    processes = []

    def start():
        command = [sys.executable, "-sSP", "-m", "amp_nova.guard", "--state-path", tmp_path]
        env = {"PYTHONPATH": str(Path(amp_nova.__file__).parents[1])}
        processes.append(subprocess.Popen(command, env=env))
        return processes[0]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("left", "place"),
    [
        ((-1, 100_000), {0, 1}),
        ((5_000, 20_000), {1}),
        ((10_000, 20_000), {0}),
        ((7_000, 50_000), {0}),
    ],
)
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
    until(lambda: booked.state() == (right, there, 5120), 30, "limit, place and weight")
    until(lambda: victim.place == {0, 1}, 30, "the affinity found")

    other = {1} if place == {0} else {0}
    os.sched_setaffinity(booked.process.pid, other)
    right = (5_000, 20_000) if other == {0} else (10_000, 20_000)
    until(lambda: booked.limit() == right, 30, "the limit after a move")
    booked.set("cpu.cfs_quota_us", 7_000)  # as a write that comes too late
    until(lambda: booked.limit() == right, 30, "the limit after a late write")

    for stand in stands:
        stand.end()
    assert process.wait(30) == 0
