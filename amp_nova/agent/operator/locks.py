"""Lock files of the state folder: one agent at a time, and one at a time who changes limits."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from amp_nova.exceptions import ConfigInvalid

AGENT, CYCLE = "agent.lock", "cycle.lock"
"""The lock of a running agent, and the one that every process takes while it changes limits."""
TAKEN = {
    AGENT: "another amp-nova-agent runs here",
    CYCLE: "another process is changing limits",
}


@contextlib.contextmanager
def locked(state_path: Path, name: str, *, wait: bool) -> Iterator[None]:
    """Take a lock file of the state folder; ``ConfigInvalid`` if another process has it."""
    path = state_path / name
    try:
        state_path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise ConfigInvalid(
            f"[agent] state_path {state_path} cannot be written ({exc.strerror}): run this as root "
            "or set another folder"
        ) from exc
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as exc:
            raise ConfigInvalid(f"{TAKEN[name]} (it holds {path})") from exc
        yield
    finally:
        os.close(fd)
