"""Instances the agent keeps its hands off: one small file each, which outlives the agent."""

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


class Holds:
    """The folder of holds. ``clock`` gives wall time in seconds: a hold outlives the agent."""

    def __init__(self, state_path: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = state_path / "holds"
        self._clock = clock
        self._stamp = 0
        self._holds: dict[str, tuple[float | None, str]] = {}

    def current(self) -> Mapping[str, str]:
        """Instances held now, by UUID, and why."""
        try:
            stamp = self._folder.stat().st_mtime_ns
        except OSError:
            return {}
        # As long as the folder may change again without a new time, its time says nothing.
        if stamp != self._stamp or time.time_ns() - stamp < _RACY_NS:
            self._holds, self._stamp = self._load(), stamp
        if not self._holds:
            return {}
        now = self._clock()
        ended = {r for r, (until, _) in self._holds.items() if until is not None and until <= now}
        return {r: why for r, (_, why) in self._holds.items() if r not in ended}

    def _load(self) -> dict[str, tuple[float | None, str]]:
        found = {}
        for path in self._folder.glob("*.json"):
            # A file that cannot be read holds as well: hands off is the safe side.
            until, why = None, "its hold file cannot be read; use 'amp-nova resume'"
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                content = json.loads(path.read_text())
                until = None if content["until_s"] is None else float(content["until_s"])
                why = str(content["why"])
            found[path.stem] = (until, why)
        return found

    def hold(self, resource: str, why: str, ttl_s: float | None = None) -> None:
        """Keep hands off an instance, for ``ttl_s`` seconds or until it is resumed."""
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
        """Take an instance back, by its UUID; whether it was held."""
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
