"""Checks of files that the agent trusts: who owns them and who may read or change them."""

import os
import stat
from pathlib import Path


def check_private(path: str | Path) -> None:
    """Refuse a file that others can read or that anybody but its owner can change.

    A group may read it (0640), and a deployment tool's user may own it.

    Raises:
        OSError: it cannot be examined.
        ValueError: it is open to others; the message names the remedy.
    """
    seen = os.stat(path)
    if seen.st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise ValueError(
            f"{path} holds credentials and is open to others (mode "
            f"{stat.S_IMODE(seen.st_mode):04o}): run chmod 0640 {path}"
        )


def check_trusted(path: str | Path) -> None:
    """Refuse a file that another user could have written: foreign owner, or writable by others.

    Raises:
        OSError: it cannot be examined.
        ValueError: somebody else may change it; the message names the remedy.
    """
    seen = os.stat(path)
    if seen.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        raise ValueError(
            f"{path} can be changed by others (mode {stat.S_IMODE(seen.st_mode):04o}): run chmod "
            f"go-w {path}"
        )
    if seen.st_uid not in (0, os.geteuid()):
        raise ValueError(f"{path} belongs to user {seen.st_uid}: run chown root {path}")
