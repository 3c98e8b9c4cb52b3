# SPDX-License-Identifier: Apache-2.0
"""Starts processes and stops those, and only those, that were started here."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.cloud.layout import ADDRESS, LOG, RUN


class Failed(Exception):
    """The cloud could not be started or stopped; one sentence says why."""


def _began(pid: int) -> str | None:
    """When a process began, which tells it from a later one of the same id; ``None``: it ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if stat[0] == "Z" else stat[19]


def start(name: str, command: Sequence[object], **variables: object) -> int:
    """Start a process that stays, in a process group of its own; its output is in LOG."""
    environment = {**os.environ, **{key: str(value) for key, value in variables.items()}}
    with (LOG / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (RUN / name).write_text(f"{process.pid} {_began(process.pid)}")
    return process.pid


def running(name: str) -> int | None:
    """The id of a process that was started under this name, if it still runs."""
    try:
        pid, began = (RUN / name).read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if _began(int(pid)) == began else None


def started() -> list[str]:
    """The names of all that was started, last first."""
    if not RUN.is_dir():
        return []
    return [p.name for p in sorted(RUN.iterdir(), key=lambda p: -p.stat().st_mtime_ns)]


def stop(names: Sequence[str], patience_s: float = 5.0) -> None:
    """End these processes and their groups: SIGTERM first, then SIGKILL."""
    pids = {name: pid for name in names if (pid := running(name)) is not None}
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids.values():
            try:
                os.killpg(pid, number)
            except ProcessLookupError:
                pass
        end = time.monotonic() + patience_s
        while any(_group_lives(pid) for pid in pids.values()) and time.monotonic() < end:
            time.sleep(0.05)
    for name, pid in pids.items():
        if _group_lives(pid):
            raise Failed(f"{name} (process group {pid}) does not end")
    for name in names:
        (RUN / name).unlink(missing_ok=True)


def _group_lives(group: int) -> bool:
    try:
        os.waitpid(-group, os.WNOHANG)  # one that this very process started
    except ChildProcessError:
        pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return any(_of_group(group))


def _of_group(group: int) -> list[int]:
    """The members that are not merely waiting for their parent to notice that they ended."""
    members = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            stat = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(stat[2]) == group and stat[0] != "Z":
            members.append(int(folder.name))
    return members


def call(*command: object, text: str | None = None, **variables: object) -> str:
    """Run a command to its end; what it printed. ``Failed`` when it fails."""
    process = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **{key: str(value) for key, value in variables.items()}},
        input=text,
        stdin=None if text is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    with (LOG / "commands.log").open("a") as log:
        log.write(
            f"$ {' '.join(str(word) for word in command)}\n{process.stdout}{process.stderr}\n"
        )
    if process.returncode:
        lines = (process.stderr or process.stdout).strip().splitlines() or [""]
        raise Failed(f"{' '.join(str(word) for word in command)} failed: {lines[-1]}")
    return process.stdout


def until(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Wait for a condition; ``Failed`` after ``timeout_s``."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"timed out after {timeout_s:g} s, waiting for {what}; see {LOG}")
        time.sleep(0.1)


def listens(port: int) -> bool:
    """Whether somebody answers at a port of the loopback address."""
    try:
        socket.create_connection((ADDRESS, port), timeout=2).close()
    except OSError:
        return False
    return True


def step(what: str, *actions: Callable[[], object]) -> None:
    """Take actions at the same time, and print how long that took."""
    began_s = time.monotonic()
    with ThreadPoolExecutor(len(actions)) as pool:
        tasks = [pool.submit(action) for action in actions]
    for task in tasks:
        task.result()
    print(f"{time.monotonic() - began_s:7.1f} s  {what}", file=sys.stderr, flush=True)
