# SPDX-License-Identifier: Apache-2.0
"""What a real QEMU that somebody has taken over may do with its own threads (x86-64, ptrace(2)).

The system calls are made in its vCPU's thread, as code that runs there would make them.
"""

import ctypes
import errno
import os
import platform
import signal
import struct
from pathlib import Path

import pytest

from tests.support.lab import FAST, SLOW, affinity, cgroup, until

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="it knows the registers and system calls of x86-64"
)
GETREGS, SETREGS, ATTACH, SINGLESTEP, DETACH = 12, 13, 16, 9, 17
RAX, RSP, ORIG_RAX, RIP = 10, 19, 15, 16
ARGUMENTS = (14, 13, 12)
"""rdi, rsi and rdx in ``struct user_regs_struct``."""
WALL = 0x40000000
"""To wait for a thread (``__WALL``)."""
SCHED_SETAFFINITY, SCHED_SETSCHEDULER, SETPRIORITY, PRCTL = 203, 144, 141, 157
MEMORY = None
"""An argument that points to the memory given."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, tid, data=0):
    if _libc.ptrace(request, tid, 0, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def called(task, number, arguments, memory):
    """What a system call returned that a thread was made to make; ``None`` if it ended by that."""
    tid, process = int(task.name), task.parent.parent
    ptrace(ATTACH, tid)
    os.waitpid(tid, WALL)
    before = (ctypes.c_ulonglong * 27)()
    ptrace(GETREGS, tid, ctypes.addressof(before))
    maps = (process / "maps").read_text().splitlines()
    vdso = next(line.split()[0] for line in maps if line.endswith("[vdso]"))
    start, end = (int(each, 16) for each in vdso.split("-"))
    now = (ctypes.c_ulonglong * 27)(*before)
    below = before[RSP] - 4096
    with (process / "mem").open("r+b", buffering=0) as file:
        file.seek(start)
        now[RIP] = start + file.read(end - start).index(b"\x0f\x05")  # syscall
        file.seek(below)
        file.write(memory)
    now[RAX], now[ORIG_RAX] = number, 2**64 - 1
    for at, value in zip(ARGUMENTS, arguments, strict=False):
        now[at] = below if value is MEMORY else value % 2**64
    ptrace(SETREGS, tid, ctypes.addressof(now))
    ptrace(SINGLESTEP, tid)
    _, status = os.waitpid(tid, WALL)
    if not os.WIFSTOPPED(status):
        return None
    ptrace(GETREGS, tid, ctypes.addressof(now))
    if os.WSTOPSIG(status) == signal.SIGTRAP:
        ptrace(SETREGS, tid, ctypes.addressof(before))
        ptrace(DETACH, tid)
        return ctypes.c_longlong(now[RAX]).value
    ptrace(DETACH, tid, os.WSTOPSIG(status))  # of its filter: it ends now
    return None


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
