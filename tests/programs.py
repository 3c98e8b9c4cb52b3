"""Programs that a test runs, and conditions that it waits for."""

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
