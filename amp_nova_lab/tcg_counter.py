# SPDX-License-Identifier: Apache-2.0
"""Instructions of an emulated guest, which a QEMU plugin counts in a shared file.

The agent loads it as the entry point ``tcg`` of ``amp_nova.counters``. Hosts in
production run no emulated guests.

QEMU's command line names the file, so any guest with the plugin is found. The file is read
rather than mapped: if another process truncates it, a read is short, whereas access to a mapping
would kill this process.

The CPU time that belongs to a count is that of a perf event which counts nothing. ``schedstat``
lags by up to a timer tick while the vCPU runs, and the plugin's count does not.
"""

import contextlib
import errno
import itertools
import os
import re
import stat
import struct
import sys
from pathlib import Path

from amp_nova.exceptions import CountersNever, CountersUnavailable
from amp_nova.host.counters import perf
from amp_nova.kernel import files
from amp_nova.model.observation import Counts

MAGIC = int.from_bytes(b"AMPINCT1", "little")
VERSION = 1
_HEADER = struct.Struct("=QIIII")
_HEADER_BYTES = _SLOT_BYTES = 64
_TIMES = struct.Struct("=QQQ")
BYTES_MAX = 1 << 20
"""Larger than the file of any guest: a vCPU takes 64 bytes."""
CPU_TIME = perf.Event("nothing", 1, 9)
"""PERF_COUNT_SW_DUMMY: its time enabled is the thread's CPU time since it was opened."""
_OPTIONS = ("-plugin", "--plugin")
_COMMA = re.compile(r"(?<!,),(?!,)")


def counter_file(root: Path, pid: int) -> Path:
    """The plugin's file, seen through the root directory of the QEMU process.

    Raises ``CountersUnavailable``, and ``CountersNever`` if the process has no such plugin.
    """
    try:
        arguments = files.text(root / f"proc/{pid}/cmdline").split("\0")
    except OSError as exc:
        raise CountersUnavailable(f"the arguments of QEMU cannot be read: {exc.strerror}") from exc
    for option, value in itertools.pairwise(arguments):
        if option in _OPTIONS:
            for part in _COMMA.split(value):
                if part.startswith("out="):
                    path = part[4:].replace(",,", ",").lstrip("/")
                    return root / f"proc/{pid}/root" / path
    raise CountersNever(
        "the guest is emulated, and QEMU was started without the plugin that counts instructions"
    )


def _open_inside(root: Path, parts: tuple[str, ...]) -> int:
    """Open a file below a directory for reading; no link in its path is followed.

    Opening does not block (on a FIFO). ``OSError`` or ``ValueError`` if it cannot be opened.
    """
    if not parts or ".." in parts:
        raise ValueError("its name has no file or leads upwards")
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts[:-1]:
        try:
            inner = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(part, inner, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    try:
        last = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(parts[-1], last, dir_fd=folder)
    finally:
        os.close(folder)


class TcgCounter:
    """The plugin's count for one vCPU. All methods may raise ``CountersUnavailable``."""

    source = "tcg"

    def __init__(self, root: Path, pid: int, tid: int, index: int) -> None:
        self.note: str | None = None
        """Why small bookings are less exact than they could be, ``None`` if they are not."""
        self._clock: int | None = None
        inside = root / f"proc/{pid}/root"
        path = counter_file(root, pid).relative_to(inside)
        shown = "/" + str(path).encode("unicode_escape").decode()[:200]
        try:
            self._fd = _open_inside(inside, path.parts)
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise CountersUnavailable(
                f"the plugin's file {shown} cannot be opened: {reason}"
            ) from exc
        try:
            problem = self._problem(pid, index) or self._foreign(root, pid)
        except OSError as exc:
            problem = f"cannot be read: {exc.strerror}"
        if problem is not None:
            self.close()
            raise CountersUnavailable(f"the plugin's file {shown} {problem}")
        self._offset = _HEADER_BYTES + _SLOT_BYTES * index
        self._last = 0
        try:
            self._clock = perf.open_event(CPU_TIME, tid)
        except OSError as exc:
            if exc.errno != errno.ESRCH:  # a thread that has ended is noticed anyway
                lags = "small bookings are less exact, as schedstat lags by up to a timer tick"
                self.note = f"{lags}: {perf.why(exc, 'CPU time', root)}"

    def _problem(self, pid: int, index: int) -> str | None:
        file_stat = os.fstat(self._fd)
        if not stat.S_ISREG(file_stat.st_mode):
            return "is not a regular file"
        if file_stat.st_size > BYTES_MAX:
            return f"has {file_stat.st_size} bytes, more than the plugin ever writes"
        raw = os.pread(self._fd, _HEADER.size, 0)
        if len(raw) < _HEADER.size:
            return "is too short"
        magic, version, vcpus, owner, _ = _HEADER.unpack(raw)
        if magic != MAGIC:
            return "was not written by the plugin icount"
        if version != VERSION:
            return f"has version {version}, not {VERSION}: build the plugin of this amp-nova"
        if owner != pid:
            return f"belongs to process {owner}, not {pid}: give every guest its own file"
        if index >= vcpus:
            return f"has {vcpus} vCPUs, none with index {index}"
        return None

    def _foreign(self, root: Path, pid: int) -> str | None:
        """Why the file does not belong to this QEMU's user; ``None`` if it does."""
        try:
            status = files.text(root / f"proc/{pid}/status")
        except OSError as exc:
            return f"is ignored: the user of QEMU is unknown ({exc.strerror})"
        match = re.search(r"(?m)^Uid:\s+\d+\s+(\d{1,10})\s", status)
        owner, user = os.fstat(self._fd).st_uid, int(match[1]) if match else None
        if owner == user:
            return None
        return f"belongs to user {owner}, not to QEMU's ({'unknown' if user is None else user})"

    def read(self) -> Counts:
        """Instructions since the guest started."""
        try:
            raw = os.pread(self._fd, 8, self._offset)
        except OSError as exc:
            raise CountersUnavailable(f"the plugin's file cannot be read: {exc.strerror}") from exc
        if len(raw) < 8:
            raise CountersUnavailable("the plugin's file was truncated")
        now = int.from_bytes(raw, sys.byteorder)
        if now < self._last:
            raise CountersUnavailable("the plugin's count went backwards")
        self._last = now
        return Counts(now, run_ns=self._run_ns())

    def _run_ns(self) -> int | None:
        if self._clock is None:
            return None
        _, enabled_ns, _ = _TIMES.unpack(os.read(self._clock, _TIMES.size))
        return int(enabled_ns)

    def close(self) -> None:
        for fd in (self._fd, self._clock):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
