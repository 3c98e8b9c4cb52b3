"""Instructions of an emulated guest, which a QEMU plugin counts in a shared file.

QEMU's command line names the file, so that any guest with the plugin is found. The file is read
rather than mapped: if another process truncates it, a read is short, whereas access to a mapping
would kill this process.
"""

import contextlib
import itertools
import os
import re
import stat
import struct
import sys
from pathlib import Path

from amp_nova.exceptions import CountersNever, CountersUnavailable
from amp_nova.model.observation import Counts

MAGIC = int.from_bytes(b"AMPINCT1", "little")
VERSION = 1
_HEADER = struct.Struct("=QIIII")
_HEADER_BYTES = _SLOT_BYTES = 64
_OPTIONS = ("-plugin", "--plugin")
_COMMA = re.compile(r"(?<!,),(?!,)")


def counter_file(root: Path, pid: int) -> Path:
    """The plugin's file, seen through the root directory of the QEMU process.

    Raises ``CountersUnavailable``, and ``CountersNever`` if the process has no such plugin.
    """
    try:
        arguments = (root / f"proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
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


class TcgCounter:
    """The plugin's count for one vCPU. All methods may raise ``CountersUnavailable``."""

    source = "tcg"
    note = None

    def __init__(self, root: Path, pid: int, index: int) -> None:
        path = counter_file(root, pid)
        shown = "/" + str(path.relative_to(root / f"proc/{pid}/root"))
        try:
            # Opening must not block (on a FIFO) nor follow a symbolic link.
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as exc:
            raise CountersUnavailable(
                f"the plugin's file {shown} cannot be opened: {exc.strerror}"
            ) from exc
        try:
            problem = self._problem(pid, index)
        except OSError as exc:
            problem = f"cannot be read: {exc.strerror}"
        if problem is not None:
            self.close()
            raise CountersUnavailable(f"the plugin's file {shown} {problem}")
        self._offset = _HEADER_BYTES + _SLOT_BYTES * index
        self._last = 0

    def _problem(self, pid: int, index: int) -> str | None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            return "is not a regular file"
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
        return Counts(now)

    def close(self) -> None:
        """Close the descriptor."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
