# SPDX-License-Identifier: Apache-2.0
"""Slows down one CPU for everything that runs on it, so that any machine is asymmetric.

A software perf event on that CPU fires every ``period`` and runs a BPF program that spins for
``burn`` in hard interrupt context. Unless the kernel accounts interrupt time separately, that time
counts as the running task's: fewer instructions per CPU second rather than fewer CPU seconds, which
is what a slower core means. Needs root and BPF; undone on close or when the process ends.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
from types import TracebackType
from typing import Self

from amp_nova.exceptions import AmpError

_SYSCALLS = {"x86_64": (321, 298), "aarch64": (280, 241)}  # bpf, perf_event_open
_PROG_LOAD, _TYPE_PERF_EVENT = 5, 7
_SOFTWARE, _CPU_CLOCK = 1, 0
_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408
_KTIME_GET_NS = 5


def _instruction(code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhi", code, src << 4 | dst, off, imm)


def _program(burn_ns: int) -> bytes:
    """Spin for ``burn_ns``; ``may_goto`` bounds the loop for the verifier."""
    return b"".join(
        (
            _instruction(0x85, imm=_KTIME_GET_NS),
            _instruction(0xBF, dst=6),  # r6 = r0: the start
            _instruction(0xE5, off=3),  # may_goto: exit after very many turns
            _instruction(0x85, imm=_KTIME_GET_NS),
            _instruction(0x1F, src=6),  # r0 -= r6
            _instruction(0xA5, off=-4, imm=burn_ns),  # if r0 < burn: repeat
            _instruction(0xB7),  # r0 = 0
            _instruction(0x95),  # exit
        )
    )


def _syscall(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class SlowCore:
    """Slows down one CPU while open. A ``burn_ratio`` of 0.5 makes it half as fast."""

    def __init__(self, cpu: int, burn_ratio: float = 0.5, period_ns: int = 1_000_000) -> None:
        self.cpu = cpu
        self._fds: list[int] = []
        try:
            self._start(int(period_ns * burn_ratio), period_ns)
        except (OSError, KeyError) as exc:
            self.close()
            why = exc.strerror if isinstance(exc, OSError) else f"machine type {exc}"
            raise AmpError(f"cannot slow down CPU {cpu} ({why}): run as root, with BPF") from exc

    def _start(self, burn_ns: int, period_ns: int) -> None:
        bpf, perf_event_open = _SYSCALLS[platform.machine()]
        program, licence = _program(burn_ns), ctypes.create_string_buffer(b"GPL")
        code = ctypes.create_string_buffer(program, len(program))
        attributes = struct.pack(
            "<IIQQIIQ",
            _TYPE_PERF_EVENT,
            len(program) // 8,
            ctypes.addressof(code),
            ctypes.addressof(licence),
            0,
            0,
            0,
        ).ljust(128, b"\0")
        self._fds.append(_syscall(bpf, _PROG_LOAD, attributes, len(attributes)))
        # struct perf_event_attr: type, size, config, sample_period, the rest zero.
        event = struct.pack("<IIQQ", _SOFTWARE, 112, _CPU_CLOCK, period_ns).ljust(112, b"\0")
        no_pid, no_group = ctypes.c_int(-1), ctypes.c_int(-1)
        self._fds.append(
            _syscall(perf_event_open, event, no_pid, ctypes.c_int(self.cpu), no_group, 0)
        )
        fcntl.ioctl(self._fds[1], _IOC_SET_BPF, self._fds[0])
        fcntl.ioctl(self._fds[1], _IOC_ENABLE, 0)

    def close(self) -> None:
        """Restore the speed of the CPU."""
        while self._fds:
            with contextlib.suppress(OSError):
                os.close(self._fds.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def available() -> str | None:
    """Why CPUs cannot be slowed down here, ``None`` if they can."""
    if os.geteuid() != 0:
        return os.strerror(errno.EPERM)
    try:
        with SlowCore(max(os.sched_getaffinity(0)), 0.01):
            return None
    except AmpError as exc:
        return str(exc)
