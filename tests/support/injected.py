# SPDX-License-Identifier: Apache-2.0
"""Makes a thread of another process do what its program would not (x86-64, ptrace(2)).

It is that thread that makes the system calls: what its process may not do is refused, or ends it.
"""

import ctypes
import os
import platform
import signal
import struct

import pytest

skip_elsewhere = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="it knows the registers and system calls of x86-64"
)
GETREGS, SETREGS, ATTACH, SINGLESTEP, DETACH = 12, 13, 16, 9, 17
RAX, RSP, ORIG_RAX, RIP = 10, 19, 15, 16
ARGUMENTS = (14, 13, 12, 7, 9, 8)
"""rdi, rsi, rdx, r10, r8 and r9 in ``struct user_regs_struct``."""
WALL = 0x40000000
"""To wait for a thread (``__WALL``)."""
MEMORY = None
"""An argument that points to the memory given."""
MMAP, CLONE, SETPRIORITY, SCHED_SETSCHEDULER, PRCTL = 9, 56, 141, 144, 157
SCHED_SETAFFINITY, TGKILL = 203, 234
THREAD = 0x3D0F00
"""The flags with which C libraries start threads; QEMU's filter refuses others."""
PAGES_BYTES, READ_WRITE_EXECUTE, PRIVATE = 65536, 7, 0x22
SYSCALL, SPIN = b"\x0f\x05", b"\xeb\xfe"
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(request, tid, data=0):
    if _libc.ptrace(request, tid, 0, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def called(task, number, arguments, memory=b"", at=None):
    """What a system call returned that a thread was made to make; ``None`` if it ended by that.

    ``at``: the address of its instruction; otherwise one in the vDSO is used.
    """
    tid, process = int(task.name), task.parent.parent
    _ptrace(ATTACH, tid)
    os.waitpid(tid, WALL)
    before = (ctypes.c_ulonglong * 27)()
    _ptrace(GETREGS, tid, ctypes.addressof(before))
    now = (ctypes.c_ulonglong * 27)(*before)
    below = before[RSP] - 4096
    with (process / "mem").open("r+b", buffering=0) as file:
        file.seek(below)
        file.write(memory)
    now[RIP] = at or _in_vdso(process)
    now[RAX], now[ORIG_RAX] = number, 2**64 - 1
    for index, value in zip(ARGUMENTS, arguments, strict=False):
        now[index] = below if value is MEMORY else value % 2**64
    _ptrace(SETREGS, tid, ctypes.addressof(now))
    _ptrace(SINGLESTEP, tid)
    _, status = os.waitpid(tid, WALL)
    if not os.WIFSTOPPED(status):
        return None
    _ptrace(GETREGS, tid, ctypes.addressof(now))
    if os.WSTOPSIG(status) == signal.SIGTRAP:
        _ptrace(SETREGS, tid, ctypes.addressof(before))
        _ptrace(DETACH, tid)
        return ctypes.c_longlong(now[RAX]).value
    _ptrace(DETACH, tid, os.WSTOPSIG(status))  # of its filter: it ends now
    return None


def _in_vdso(process):
    maps = (process / "maps").read_text().splitlines()
    vdso = next(line.split()[0] for line in maps if line.endswith("[vdso]"))
    start, end = (int(each, 16) for each in vdso.split("-"))
    with (process / "mem").open("rb", buffering=0) as file:
        file.seek(start)
        return start + file.read(end - start).index(SYSCALL)


def thread_started(task, code):
    """The ID of a new thread that a thread starts, in its cgroups, and that runs this code."""
    pages = called(task, MMAP, (0, PAGES_BYTES, READ_WRITE_EXECUTE, PRIVATE, -1, 0))
    with (task.parent.parent / "mem").open("r+b", buffering=0) as file:
        file.seek(pages)
        file.write(SYSCALL + code)
    end = pages + PAGES_BYTES - 4096
    return called(task, CLONE, (THREAD, end, end, end, end), at=pages)


def signalling(pid, tid, number):
    """Code that sends a thread a signal, again and again."""
    words = ((0xB8, TGKILL), (0xBF, pid), (0xBE, tid), (0xBA, number))
    move = b"".join(struct.pack("<BI", register, value) for register, value in words)
    return move + SYSCALL + b"\xeb\xe8"
