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


class Lease:
    """The agent's side of a lease: renews it, and counts how often it expired."""

    def __init__(self, state_path: Path, length_s: float) -> None:
        """Open the files of the lease; raises ``OSError`` if the state folder is not writable."""
        self.length_s = length_s
        self._path = state_path
        self._renewed_ns = 0
        state_path.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(state_path / LEASE, flags, 0o600)
        self._lock = os.open(state_path / LOCK, flags, 0o600)
        self._seen = expirations(state_path)

    def renew(self) -> float:
        """Renew the lease; returns the seconds that were left, negative if it had expired."""
        now_ns = time.monotonic_ns()
        left_s = self.length_s - (now_ns - (self._renewed_ns or now_ns)) / 1e9
        os.pwrite(self._fd, f"{now_ns + round(self.length_s * 1e9):020d}\n".encode(), 0)
        self._renewed_ns = now_ns
        return left_s

    @property
    def expirations(self) -> int:
        """How often the guard has taken over on this host, as of the last ``taken_over``."""
        return self._seen

    def taken_over(self) -> bool:
        """Whether the guard has applied the safe state since the last call."""
        now = expirations(self._path)
        changed, self._seen = now != self._seen, now
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
    try:
        return int((state_path / LEASE).read_text())
    except (OSError, ValueError):
        return 0


def remaining_s(state_path: Path) -> float:
    """Seconds until the lease expires; 0 if it has expired or there is none."""
    left_s = (ends_ns(state_path) - time.monotonic_ns()) / 1e9
    return left_s if 0.0 < left_s <= LEASE_MAX_S else 0.0


def expirations(state_path: Path) -> int:
    """How often leases have expired."""
    try:
        return int((state_path / COUNT).read_text())
    except (OSError, ValueError):
        return 0


def count_expiration(state_path: Path) -> None:
    """Count one more expiration; a failed write must not keep the guard from its work."""
    number = expirations(state_path) + 1
    with contextlib.suppress(OSError):
        fd = os.open(state_path / COUNT, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(fd, f"{number:020d}\n".encode(), 0)
        finally:
            os.close(fd)


def alone(state_path: Path) -> int | None:
    """Take the guard lock and write this process's ID into it; ``None`` if another guard has it.

    Returns the descriptor that holds the lock; raises ``OSError`` if the file cannot be opened.
    """
    fd = os.open(state_path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for _ in range(20):  # an agent holds the lock briefly to see whether a guard is running
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(fd, f"{os.getpid():020d}\n".encode(), 0)
            return fd
        time.sleep(0.05)
    os.close(fd)
    return None
