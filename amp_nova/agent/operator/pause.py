"""Instances that the agent must not change: one small file each, which survives the agent."""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from amp_nova.exceptions import AmpError

_RACY_NS = 1_000_000_000
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
"""An instance's UUID: nothing else may become the name of a file."""


class Pauses:
    """The folder of pauses. ``clock``: wall time in seconds, because a pause survives the agent."""

    def __init__(self, state_path: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = state_path / "holds"
        self._clock = clock
        self._stamp = 0
        self._read: dict[str, tuple[float | None, str]] = {}

    def current(self) -> Mapping[str, str]:
        """The instances that are paused now, by UUID, and why."""
        try:
            stamp = self._folder.stat().st_mtime_ns
        except OSError:
            return {}
        # While the folder may change again without a newer time stamp, the stamp says nothing.
        if stamp != self._stamp or time.time_ns() - stamp < _RACY_NS:
            self._read, self._stamp = self._load(), stamp
        now = self._clock()
        # An end that is not a number has not passed: it pauses as well.
        return {
            r: why for r, (until, why) in self._read.items() if until is None or not until <= now
        }

    def _load(self) -> dict[str, tuple[float | None, str]]:
        found = {}
        for path in self._folder.glob("*.json"):
            # An unreadable file pauses as well: that is the safe side.
            until, why = None, "its pause file cannot be read; use 'amp-nova resume'"
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                content = json.loads(path.read_text())
                until = None if content["until_s"] is None else float(content["until_s"])
                why = str(content["why"])
            found[path.stem] = (until, why)
        return found

    def pause(self, resource: str, why: str, ttl_s: float | None = None) -> None:
        """Pause an instance, by its UUID, for ``ttl_s`` seconds or until it is resumed."""
        until_s = None if ttl_s is None else self._clock() + ttl_s
        if not _NAME.fullmatch(resource):
            raise AmpError(f"'{resource}' is not the UUID of an instance")
        path = self._folder / f"{resource}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps({"until_s": until_s, "why": why}))
            os.replace(fresh, path)
        except OSError as exc:
            raise AmpError(f"cannot write {path}: {exc.strerror}; run this as root") from exc

    def resume(self, resource: str) -> bool:
        """Resume an instance, by its UUID; whether it was paused."""
        if not _NAME.fullmatch(resource):
            return False
        path = self._folder / f"{resource}.json"
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise AmpError(f"cannot remove {path}: {exc.strerror}; run this as root") from exc
        return True
