"""Instances that neither agent nor guard may change: one file for each, which survives both."""

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
"""The form of an instance's UUID: no other text may become a file name."""


class Pauses:
    """The folder of pauses. ``clock``: wall-clock time, because a pause survives the agent."""

    def __init__(self, state_path: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = state_path / "holds"
        self._clock = clock
        self._stamp = 0
        self._read: dict[str, tuple[float | None, str]] = {}

    def current(self) -> Mapping[str, str]:
        """The instances that are paused now: the reason by UUID."""
        try:
            stamp = os.stat(self._folder).st_mtime_ns
        except OSError:
            return {}
        # A recent time stamp is not trusted: the folder may change again without a newer one.
        if stamp != self._stamp or time.time_ns() - stamp < _RACY_NS:
            self._read, self._stamp = self._load(), stamp
        now = self._clock()
        # An end that is NaN has not passed, so it still pauses.
        return {
            r: why for r, (until, why) in self._read.items() if until is None or not until <= now
        }

    def _load(self) -> dict[str, tuple[float | None, str]]:
        pauses = {}
        for path in self._folder.glob("*.json"):
            # An unreadable file pauses as well, to be on the safe side.
            until, why = None, "its pause file cannot be read; use 'amp-nova resume'"
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                content = json.loads(path.read_text())
                until = None if content["until_s"] is None else float(content["until_s"])
                why = str(content["why"])
            pauses[path.stem] = (until, why)
        return pauses

    def pause(self, resource: str, why: str, ttl_s: float | None = None) -> None:
        """Pause the instance with this UUID for ``ttl_s`` seconds or until resumed.

        Raises ``AmpError`` if the UUID is not valid or the file cannot be written.
        """
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
        """Resume the instance with this UUID; returns whether it was paused."""
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
