# SPDX-License-Identifier: Apache-2.0
"""Who owns a file that the agent trusts and who may read or change it; how a file is replaced."""

import os
import stat
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably; everybody may read it. Raises ``OSError``."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def check_private(path: str | Path) -> None:
    """Refuse a file that others can read or that anybody but its owner can change.

    Its group may read it (mode 0640), and it may belong to a deployment tool's user. The message of
    the ``ValueError`` names the remedy; ``OSError`` if the file cannot be examined.
    """
    status = os.stat(path)
    if status.st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise ValueError(
            f"{path} holds credentials and is open to others (mode "
            f"{stat.S_IMODE(status.st_mode):04o}): run chmod 0640 {path}"
        )


def check_trusted(path: str | Path) -> None:
    """Refuse a file that belongs to another user, or that its group or others can write.

    The message of the ``ValueError`` names the remedy; ``OSError`` if it cannot be examined.
    """
    status = os.stat(path)
    if status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        raise ValueError(
            f"{path} can be changed by others (mode {stat.S_IMODE(status.st_mode):04o}): run chmod "
            f"go-w {path}"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise ValueError(f"{path} belongs to user {status.st_uid}: run chown root {path}")
