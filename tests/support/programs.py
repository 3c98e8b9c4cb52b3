# SPDX-License-Identifier: Apache-2.0
"""Programs that a test runs, and conditions that it waits for."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run(*words: object, cwd: Path | None = None, **environment: str) -> str:
    """Run a program, which must succeed; what it prints on both outputs."""
    done = subprocess.run(
        [str(w) for w in words],
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout}"
    return done.stdout


def until(
    condition: Callable[[], Any],
    timeout_s: float = 10.0,
    what: str = "the condition",
    pause_s: float = 0.02,
) -> Any:
    """Wait for a condition, and return what it returns; fail if it is not met in time."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"no sign of {what} within {timeout_s} s"
        time.sleep(pause_s)
    return value


def guards(folder: Path) -> list[int]:
    """The process ids of guards whose state is in a folder, also of one that has just begun."""
    pids = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = command.read_text(errors="replace").split("\0")
            if "amp_nova.guard" in words and any(Path(w).is_relative_to(folder) for w in words):
                pids.append(int(command.parent.name))
    return pids
