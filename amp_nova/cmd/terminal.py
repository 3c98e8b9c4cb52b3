"""Output that changes while a command runs: progress, and lines that are redrawn."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence


def progress(text: str) -> None:
    """Replace the progress line on standard error; does nothing unless that is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def redrawn() -> Iterator[Callable[[Sequence[str]], None]]:
    """A function that draws lines on the terminal in place of those that it drew before.

    The last lines stay. Lines that are too long are cut.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False) as live:

        def draw(lines: Sequence[str]) -> None:
            text = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
            live.update(text, refresh=True)

        yield draw
