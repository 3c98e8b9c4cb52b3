"""Progress on a terminal, beside a command's output."""

import sys


def progress(text: str) -> None:
    """Replace the line of progress on standard error; nothing unless that is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
