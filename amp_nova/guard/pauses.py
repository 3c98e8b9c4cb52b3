# SPDX-License-Identifier: Apache-2.0
"""Instances that neither agent nor guard may change: one file for each, which survives both."""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from amp_nova.exceptions import AmpError
from amp_nova.kernel import files

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
"""The form of an instance's UUID: no other text may become a file name."""


BOOT_ID = "/proc/sys/kernel/random/boot_id"
_SINCE_BOOT = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Pauses:
    """The folder of pauses, which survive agent and boot.

    Their ends are kept on two clocks: ``since_boot`` counts in the boot in which a pause was made,
    because the wall clock (``clock``) may step; after a reboot there is only the wall clock.
    """

    def __init__(
        self,
        state_path: Path,
        clock: Callable[[], float] = time.time,
        since_boot: Callable[[], float] = _SINCE_BOOT,
    ) -> None:
        self._folder = state_path / "holds"
        self._clock, self._since_boot = clock, since_boot
        self._boot = ""
        with contextlib.suppress(OSError):
            self._boot = files.text(BOOT_ID).strip()

    def current(self) -> Mapping[str, str]:
        """The instances that are paused now: the reason by UUID."""
        paused, now = {}, self._since_boot()
        for path in self._folder.glob("*.json"):
            # An unreadable file pauses as well, to be on the safe side.
            until, why = None, "its pause file cannot be read; use 'amp-nova resume'"
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                content = json.loads(path.read_text())
                until = self._until(content)
                why = str(content["why"])
            if until is None or not until <= now:  # an end that is NaN has not passed
                paused[path.stem] = why
        return paused

    def _until(self, content: Mapping[str, Any]) -> float | None:
        """The end of a pause on the clock of this boot."""
        if content["until_s"] is None:
            return None
        if self._boot and content.get("boot") == self._boot:
            return float(content["until_boot_s"])
        return float(content["until_s"]) - self._clock() + self._since_boot()

    def pause(self, resource: str, why: str, ttl_s: float | None = None) -> None:
        """Pause the instance with this UUID for ``ttl_s`` seconds or until resumed.

        Raises ``AmpError`` if the UUID is not valid or the file cannot be written.
        """
        content: dict[str, object] = {"until_s": None, "why": why, "boot": self._boot}
        if ttl_s is not None:
            content["until_s"] = self._clock() + ttl_s
            content["until_boot_s"] = self._since_boot() + ttl_s
        if not _NAME.fullmatch(resource):
            raise AmpError(f"'{resource}' is not the UUID of an instance")
        path = self._folder / f"{resource}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            fresh = path.with_suffix(".new")
            fresh.unlink(missing_ok=True)  # whatever it is: a link may lead anywhere
            with open(os.open(fresh, _NEW, 0o644), "w", encoding="utf-8") as file:
                json.dump(content, file)
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
