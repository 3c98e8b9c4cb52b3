# SPDX-License-Identifier: Apache-2.0
"""Lock files of the state folder."""

import os
import subprocess

import pytest

from amp_nova.exceptions import Locked
from amp_nova.guard.locks import holder, locked


def test_lock_is_free_again_after_a_failure(tmp_path):
    """No descriptor is left open, and an error of the code inside is not taken for the lock's."""
    with pytest.raises(BlockingIOError), locked(tmp_path, "x"):
        raise BlockingIOError("not the lock's")

    with locked(tmp_path, "x"):
        pass


def test_waiting_ends_and_names_the_holder(tmp_path):
    """Any program may have it, like ``flock``; the file says nothing of who that is."""
    path = tmp_path / "cycle.lock"
    command = ["flock", path, "sh", "-c", "echo there; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"there\n"
            with pytest.raises(Locked) as caught, locked(tmp_path, "cycle.lock", wait_s=0.1):
                pass
        finally:
            other.kill()

    assert str(caught.value) == (
        f"another process is changing limits for 0.1 s: process {other.pid} (flock) holds {path}"
    )


def test_a_stopped_holder_is_said_to_be_stopped(tmp_path):
    """Ctrl-Z during a command: nothing else shows it."""
    lock, proc = tmp_path / "x", tmp_path / "proc"
    lock.touch()
    (proc / "77").mkdir(parents=True)
    inode = os.stat(lock).st_ino
    (proc / "locks").write_text(
        "1: POSIX  ADVISORY  WRITE 66 fe:00:1 0 EOF\n"
        f"2: FLOCK  ADVISORY  WRITE 77 fe:00:{inode} 0 EOF\n"
        f"2: -> FLOCK  ADVISORY  WRITE 88 fe:00:{inode} 0 EOF\n"
    )
    (proc / "77/comm").write_text("amp-nova\n")
    (proc / "77/stat").write_text("77 (amp-nova) T 1")

    assert holder(lock, proc) == "process 77 (amp-nova, stopped)"
    (proc / "77/comm").write_bytes(b"\xff\x1b[2J\n")
    assert holder(lock, proc) == "process 77 (\ufffd?[2J, stopped)"
    (proc / "locks").write_text("")
    assert holder(lock, proc) == "a process that /proc/locks does not name"
