# SPDX-License-Identifier: Apache-2.0
"""Lock files in the state folder: one agent at a time, and one writer of limits at a time."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from amp_nova.exceptions import ConfigInvalid, Locked
from amp_nova.kernel import files
from amp_nova.kernel.threads import stat

AGENT, CYCLE = "agent.lock", "cycle.lock"
"""The lock of a running agent, and the lock that every process takes while it changes limits."""
TAKEN = {
    AGENT: "another amp-nova-agent runs here",
    CYCLE: "another process is changing limits",
}
WAIT_S = 10.0
"""How long a command waits for a lock."""
_POLL_S = 0.02


@contextlib.contextmanager
def locked(state_path: Path, name: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Take a lock file of the state folder.

    Raises ``Locked``, which names the holder, if another process has it for ``wait_s``, and
    ``ConfigInvalid`` if the folder cannot be written.
    """
    path = state_path / name
    try:
        fd = _opened(path)
    except OSError as exc:
        raise ConfigInvalid(
            f"[agent] state_path {state_path} cannot be written ({exc.strerror}): run this as root "
            "or set another folder"
        ) from exc
    try:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    after = f" for {wait_s:g} s" if wait_s else ""
                    text = f"{TAKEN.get(name, name)}{after}: {holder(path)} holds {path}"
                    raise Locked(text) from None
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except (
        FileNotFoundError
    ):  # only the first time: between cycles a lock is taken several times a second
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def holder(path: Path, proc: Path = Path("/proc")) -> str:
    """The process that holds a file's lock, in words, according to the kernel (proc_locks(5))."""
    try:
        inode = os.stat(path).st_ino
        pids = [
            int(fields[4])
            for line in files.text(proc / "locks").splitlines()
            if (fields := line.split())[1] == "FLOCK" and fields[5].endswith(f":{inode}")
        ]
    except (OSError, ValueError, IndexError):
        pids = []
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            comm = files.text(proc / f"{pid}/comm").strip()
            name = "".join(c if c.isprintable() else "?" for c in comm)
            state = stat(f"{proc}/{pid}", 3)
            return f"process {pid} ({name}{', stopped' if state in 'Tt' else ''})"
    return "a process that /proc/locks does not name"
