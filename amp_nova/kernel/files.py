# SPDX-License-Identifier: Apache-2.0
"""Files of ``/proc``, ``/sys`` and cgroups, whatever others put into them."""

import errno
import os

TEXT_BYTES_MAX = 1 << 22
"""More than the mounts, threads or locks of the largest hosts take."""


_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
PATHS = "surrogateescape"
"""``errors`` for texts with paths in them, which must lead to the same files again."""


def text(path: str | os.PathLike[str], errors: str = "replace") -> str:
    """The text of a file; ``errors``: what becomes of bytes that are not UTF-8.

    Threads, cgroups and mounts may have any bytes in their names, and whoever may rename a thread
    must not keep others from being read. Raises ``OSError``, also if there is no end in sight.
    """
    fd = os.open(path, _FLAGS)
    try:
        found = b""
        while part := os.read(fd, 1 << 16):
            found += part
            if len(found) > TEXT_BYTES_MAX:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), os.fspath(path))
    finally:
        os.close(fd)
    return found.decode(errors=errors)


def line(path: str) -> bytes:
    """The first KiB of a file with one short line, in half the time."""
    fd = os.open(path, _FLAGS)
    try:
        return os.read(fd, 1024)
    finally:
        os.close(fd)
