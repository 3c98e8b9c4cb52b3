# SPDX-License-Identifier: Apache-2.0
"""What a real QEMU that somebody has taken over may do with its own threads (x86-64, ptrace(2)).

The system calls are made in its vCPU's thread, as code that runs there would make them.
"""

import errno
import os
import struct
from pathlib import Path

import pytest

from tests.support.injected import (
    MEMORY,
    PRCTL,
    SCHED_SETAFFINITY,
    SCHED_SETSCHEDULER,
    SETPRIORITY,
    called,
    skip_elsewhere,
)
from tests.support.lab import FAST, SLOW, affinity, cgroup, until

pytestmark = skip_elsewhere


@pytest.mark.parametrize(
    ("number", "arguments", "memory"),
    [
        (SCHED_SETAFFINITY, (0, 8, MEMORY), struct.pack("Q", 1 << FAST)),
        (SCHED_SETSCHEDULER, (0, os.SCHED_FIFO, MEMORY), struct.pack("i", 50)),
        (SETPRIORITY, (0, 0, -20), b""),
    ],
    ids=["affinity", "scheduling class", "priority"],
)
def test_a_guest_cannot_change_how_it_is_scheduled(guests, number, arguments, memory):
    """The sandbox that libvirt gives QEMU by default refuses it, or ends the guest."""
    guest = guests.guest("evil", cpuset=f"{SLOW}")
    task = guest.task()

    result = called(task, number, arguments, memory)

    if result is None:
        until(lambda: not Path(f"/proc/{guest.pid}/task/{task.name}").exists(), 10, "its end")
    else:
        assert result == -errno.EPERM
        assert affinity(guest) == {SLOW}


def test_a_guest_may_rename_its_threads_and_gains_nothing(guests, agent):
    """Its filter allows that. And the agent warns of no guest that has one."""
    guest = guests.guest("evil", {"amp:pref_core": "0.5"})
    task, group = guest.task(), cgroup(guest)
    agent.start()

    assert called(task, PRCTL, (15, MEMORY), b"CPU 7/KVM\0") == 0
    for _ in range(3):
        agent.next_cycle()

    quota, period = (int((group / f"cpu.cfs_{n}_us").read_text()) for n in ("quota", "period"))
    assert quota / period == pytest.approx(
        0.5 if os.sched_getaffinity(int(task.name)) == {SLOW} else 0.25, rel=0.02
    )
    assert "sandbox" not in agent.log.read_text()
