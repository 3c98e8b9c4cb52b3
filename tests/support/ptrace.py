# SPDX-License-Identifier: Apache-2.0
"""A forked child that is stopped or killed at any of its system calls (ptrace(2))."""

import ctypes
import os
import signal
import traceback
from collections.abc import Callable

_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_SYSGOOD, _EXITKILL = 0x1, 0x100000
_INFO_BYTES = 88
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, address: int = 0, data: object = 0) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Traced:
    """A child that does ``work`` in its only thread, and stops before each system call of it.

    The one who made it has to do everything with it, in the same thread.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self.calls: list[tuple[int, int]] = []
        """The number of each system call so far, and its first argument."""
        self.status: int | None = None
        """How it ended, as ``os.waitpid`` has it; ``None`` if it has not."""
        self.pid = os.fork()
        if self.pid == 0:
            self._child(work)
        os.waitpid(self.pid, 0)
        _ptrace(_SETOPTIONS, self.pid, 0, _SYSGOOD | _EXITKILL)

    @staticmethod
    def _child(work: Callable[[], object]) -> None:
        status = 1
        try:
            _ptrace(_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
            status = 0
        except Exception:  # noqa: BLE001 - it must not go on as its parent would
            traceback.print_exc()
        finally:
            os._exit(status)

    def step(self) -> bool:
        """Go on to the next entry into a system call or exit from one; ``False`` if it ended."""
        deliver = 0
        while True:
            _ptrace(_SYSCALL, self.pid, 0, deliver)
            _, status = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(status):
                self.status = status
                return False
            if os.WSTOPSIG(status) == signal.SIGTRAP | 0x80:
                return True
            deliver = os.WSTOPSIG(status)

    def enter(self, count: int = 1) -> bool:
        """Go on to the entry into the system call after so many; ``False`` if it ended before."""
        for _ in range(count):
            if self.calls and not self.step():  # the exit of the last one
                return False
            if not self.step():
                return False
            info = (ctypes.c_ubyte * _INFO_BYTES)()
            _ptrace(_GET_SYSCALL_INFO, self.pid, _INFO_BYTES, ctypes.addressof(info))
            words = memoryview(bytes(info)).cast("Q")
            self.calls.append((words[3], words[4]))
        return True

    def finish(self) -> list[tuple[int, int]]:
        """Go on to its end; returns the system calls that it makes from now on."""
        before = len(self.calls)
        while self.status is None and self.enter():
            pass
        return self.calls[before:]

    def kill(self) -> None:
        """Kill it where it is."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            while True:
                _, status = os.waitpid(self.pid, 0)
                if not os.WIFSTOPPED(status):
                    self.status = status
                    return
