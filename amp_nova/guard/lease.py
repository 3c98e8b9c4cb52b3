# SPDX-License-Identifier: Apache-2.0
"""The lease: until when the guard assumes that an agent is in control.

The file ``lease`` holds a time of the monotonic clock, which stops while the machine is suspended.
A renewal overwrites it in place, and so needs neither a new file nor free space.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path

LEASE, LOCK, COUNT = "lease", "guard.lock", "lease.expirations"
LEASE_MAX_S = 86_400.0
"""A lease that ends later than this from now is left over from another boot."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def _put(fd: int, number: int) -> None:
    """Overwrite a number in place, always with the same length."""
    os.pwrite(fd, f"{number:020d}\n".encode(), 0)


def _number(path: Path) -> int:
    """The number in a file, 0 if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


class Lease:
    """The agent's side of a lease: takes and renews it, and says when it is lost.

    A lease is the time until which this agent may write, and the file at its path: another file
    there, or none, ends it too, because that is what the guard reads.
    """

    def __init__(self, state_path: Path, length_s: float) -> None:
        """Open the files of the lease; raises ``OSError`` if the state folder is not writable."""
        self.length_s = length_s
        self._path = state_path
        self._file = os.path.join(state_path, LEASE)
        self._ends_ns = 0
        self._fd = self._opened()
        self._about = os.fstat(self._fd)
        self._lock = os.open(state_path / LOCK, _FLAGS, 0o600)
        self._expirations = expirations(state_path)

    def _opened(self) -> int:
        """A descriptor of the file at the path; a new file gets its space now."""
        self._path.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._file, _FLAGS, 0o600)
        try:
            if not os.fstat(fd).st_size:
                _put(fd, 0)
        except OSError:
            os.close(fd)
            raise
        return fd

    def lost(self) -> str:
        """Why this agent must not write now; empty as long as it has the lease. Takes some us."""
        try:
            there = os.path.samestat(os.stat(self._file), self._about)
        except FileNotFoundError:
            there = False
        if not there:
            return f"the agent's lease file {self._file} was removed or replaced"
        # The clock last, because it needs no system call: nothing comes between.
        return "" if time.monotonic_ns() < self._ends_ns else "the agent's lease has expired"

    def take(self) -> None:
        """Take a new lease after the last one was lost; raises ``OSError``.

        The caller holds the cycle lock, so that the guard is not at work, and adopts what it finds.
        """
        fd = self._opened()
        os.close(self._fd)
        self._fd, self._about = fd, os.fstat(fd)
        self._extend()

    def renew(self) -> float | None:
        """Extend the lease; returns the seconds that were left, ``None`` if it is lost.

        It is also lost if it expired while this ran: the guard may have acted.
        """
        if self.lost():
            return None
        ended_ns = self._ends_ns
        self._extend()
        left_s = (ended_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0.0:
            self._ends_ns = 0
            return None
        return left_s

    def _extend(self) -> None:
        ends_ns = time.monotonic_ns() + round(self.length_s * 1e9)
        _put(self._fd, ends_ns)
        self._ends_ns = ends_ns

    @property
    def expirations(self) -> int:
        """How often the guard has taken over on this host, as of the last ``taken_over``."""
        return self._expirations

    def taken_over(self) -> bool:
        """Whether the guard has applied the safe state since the last call."""
        now = expirations(self._path)
        changed, self._expirations = now != self._expirations, now
        return changed

    def guarded(self) -> bool:
        """Whether a guard is running."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Close the files; the lease remains valid until it expires."""
        os.close(self._fd)
        os.close(self._lock)


def ends_ns(state_path: Path) -> int:
    """When the lease expires or expired, in ns of the monotonic clock; 0 if there is no lease."""
    return _number(state_path / LEASE)


def remaining_s(state_path: Path) -> float:
    """Seconds until the lease expires; 0 if it has expired or there is none."""
    left_s = (ends_ns(state_path) - time.monotonic_ns()) / 1e9
    return left_s if 0.0 < left_s <= LEASE_MAX_S else 0.0


def expirations(state_path: Path) -> int:
    """How often leases have expired."""
    return _number(state_path / COUNT)


def count_expiration(state_path: Path) -> None:
    """Count one more expiration; a failed write must not keep the guard from its work."""
    number = expirations(state_path) + 1
    with contextlib.suppress(OSError):
        fd = os.open(state_path / COUNT, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            _put(fd, number)
        finally:
            os.close(fd)


def alone(state_path: Path) -> int | None:
    """Take the guard lock and write this process's ID into it; ``None`` if another guard has it.

    Returns the descriptor that holds the lock; raises ``OSError`` if the file cannot be opened.
    """
    fd = os.open(state_path / LOCK, _FLAGS, 0o600)
    for _ in range(20):  # an agent holds the lock briefly to see whether a guard is running
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):  # a full disk does not keep it from its work
                _put(fd, os.getpid())
            return fd
        time.sleep(0.05)
    os.close(fd)
    return None
