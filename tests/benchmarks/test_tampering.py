# SPDX-License-Identifier: Apache-2.0
"""What a QEMU that somebody has taken over gains by what it does with its own threads.

And what its neighbours lose. ``AMP_NOVA_TAMPERING_S=60 python -m pytest -s
tests/benchmarks/test_tampering.py`` prints the table of ``doc/source/admin/threat-model.rst``.
"""

import os
import signal
import struct
import time
from pathlib import Path

import pytest

from tests.support.injected import (
    MEMORY,
    PRCTL,
    SCHED_SETAFFINITY,
    SCHED_SETSCHEDULER,
    SETPRIORITY,
    SPIN,
    called,
    signalling,
    skip_elsewhere,
    thread_started,
)
from tests.support.lab import FAST, SLOW, cgroup, measured, undisturbed

pytestmark = [skip_elsewhere, pytest.mark.measures]
SECONDS = float(os.environ.get("AMP_NOVA_TAMPERING_S", "10"))
SAMPLE_S = 0.1
FAST_OVER_SLOW = 2.0
BOOKED, NEAR, FAR = 0.5, 0.4, 1.8
"""Reference cores: of the tampering guest, and of neighbours on its core and on the fast one."""
ALONE = 256
"""``undisturbed``: the most that the kernel knows. A neighbour has a tenth of its core to spare."""


def affinity(guest):
    return called(guest.task(), SCHED_SETAFFINITY, (0, 8, MEMORY), struct.pack("Q", 1 << FAST))


def scheduling_class(guest):
    arguments = 0, os.SCHED_FIFO, MEMORY
    return called(guest.task(), SCHED_SETSCHEDULER, arguments, struct.pack("i", 50))


def priority(guest):
    return called(guest.task(), SETPRIORITY, (0, 0, -20))


def names(guest):
    """Every thread is a vCPU, and the vCPU is none."""
    vcpu = guest.task()
    for task in vcpu.parent.iterdir():
        name = b"worker\0" if task == vcpu else b"CPU 0/KVM\0"
        assert called(task, PRCTL, (15, MEMORY), name) == 0


def signals(guest):
    """Its vCPU is interrupted all the time, as QEMU does to stop it."""
    vcpu = guest.task()
    code = signalling(guest.pid, int(vcpu.name), signal.SIGUSR1)
    assert thread_started(vcpu, code) > 0


def threads(guest):
    vcpu = guest.task()
    assert all(thread_started(vcpu, SPIN) > 0 for _ in range(8))


def threads_beside_its_vcpu(guest):
    main = guest.task().parent / str(guest.pid)
    assert all(thread_started(main, SPIN) > 0 for _ in range(8))


def run_s(group):
    """CPU time of the threads in a cgroup, in seconds."""
    tids = (group / "tasks").read_text().split()
    return sum(int(Path(f"/proc/{t}/schedstat").read_text().split()[0]) for t in tids) / 1e9


class Measured:
    """A guest that tampers, beside a neighbour on its core and one on the fast core."""

    def __init__(self, guests):
        evil = {"amp:pref_core": f"{BOOKED}", "amp:core_type": "slow"}
        self.evil = guests.guest("evil", evil, cpuset=f"{FAST},{SLOW}")
        self.near = guests.guest("near", {"amp:pref_core": f"{NEAR}"}, cpuset=str(SLOW))
        self.far = guests.guest("far", {"amp:pref_core": f"{FAR}"}, cpuset=str(FAST))
        self.tid = int(self.evil.task().name)
        self.groups = [cgroup(guest) for guest in (self.evil, self.near, self.far)]
        self.own = cgroup(self.evil).parent / "emulator"

    def window(self, *, insists=False):
        """Reference cores that all three get, and cores of the first one's other threads.

        ``insists``: it moves to the fast core whenever the agent has moved it back.
        """
        began_s, got_ref_s = time.monotonic(), 0.0
        run, *others = map(run_s, (*self.groups, self.own))
        while time.monotonic() < began_s + SECONDS:
            fast = os.sched_getaffinity(self.tid) == {FAST}
            if insists and not fast:
                os.sched_setaffinity(self.tid, {FAST})
            time.sleep(SAMPLE_S)
            now = run_s(self.groups[0])
            got_ref_s, run = got_ref_s + (now - run) * (FAST_OVER_SLOW if fast else 1.0), now
        wall_s = time.monotonic() - began_s
        now = map(run_s, (*self.groups[1:], self.own))
        near, far, own = ((b - a) / wall_s for a, b in zip(others, now, strict=True))
        return got_ref_s / wall_s, near, far * FAST_OVER_SLOW, own


ACTS = [scheduling_class, priority, affinity, names, signals, threads]


@pytest.fixture
def lab_of_three(guests, agent):
    made = Measured(guests)
    agent.start()
    agent.next_cycle(3)
    with undisturbed(made.evil, ALONE):
        yield made


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_sandboxed_qemu_gains_nothing(lab_of_three, within, act):
    act(lab_of_three.evil)

    def kept():
        guest, near, far, _ = lab_of_three.window()
        print(f"{act.__name__}: {guest / BOOKED:.2%} {near / NEAR:.2%} {far / FAR:.2%}")
        within("tampering_gain", guest / BOOKED - 1.0)
        within("tampering_loss", 1.0 - min(near / NEAR, far / FAR))

    measured(kept)


def test_threads_beside_the_vcpus_have_the_weight_of_their_instance(lab_of_three, within):
    """They are no part of a booking, so that nothing delays I/O and live migrations."""
    threads_beside_its_vcpu(lab_of_three.evil)

    guest, near, far, own = lab_of_three.window()

    print(f"beside: {guest / BOOKED:.2%} {near / NEAR:.2%} {far / FAR:.2%}, {own:.3f} cores")
    within("weight_loss", 1.0 - min(near / NEAR, far / FAR))


def test_without_a_sandbox_it_gains_until_it_is_left_alone(lab_of_three, within):
    guest, near, far, _ = lab_of_three.window(insists=True)

    print(f"no sandbox: {guest / BOOKED:.2%} {near / NEAR:.2%} {far / FAR:.2%}")
    within("unsandboxed_gain_ref_s", (guest - BOOKED) * SECONDS)
