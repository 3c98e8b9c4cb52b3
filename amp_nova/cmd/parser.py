"""The argument parser that all commands use: one-sentence errors, ``--version``, near misses."""

import argparse
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from amp_nova.exceptions import sentence


class Parser(argparse.ArgumentParser):
    """argparse with ``--version``, errors that are one sentence, and lines kept as written."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(*args, **settings)
        self.add_argument("--version", action=_Version, help="show the version and exit")

    def error(self, message: str) -> NoReturn:
        said = sentence(f"{self.prog}: {message}; see '{self.prog} --help'")
        self.exit(2, f"{said}\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        for word in unknown:  # here, because the parser of a subcommand knows its options
            hint = nearest(word.partition("=")[0], self._option_string_actions)
            if word.startswith("--") and hint:
                self.error(f"there is no option {word}{hint}")
        return found, unknown


class _Version(argparse.Action):
    """Prints the installed version; it is looked up only then, because that takes time."""

    def __init__(self, option_strings: Any, dest: str, **settings: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=settings.get("help"))

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import importlib.metadata

        program = parser.prog.split()[0]
        print(f"{program} {importlib.metadata.version('amp-nova')}")
        parser.exit()


def add_config_file(parser: argparse.ArgumentParser) -> None:
    """Add ``--config-file``, whose values ``conf.load`` takes as ``files``."""
    parser.add_argument(
        "--config-file", metavar="FILE", action="append", help="instead of the default files"
    )


def whole(low: int, high: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number from ``low`` to ``high``."""

    def read(text: str) -> int:
        # The length first: int() raises another error for a very long text.
        if not (re.fullmatch("[0-9]{1,9}", text) and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from {low} to {high}")
        return int(text)

    return read


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: the known word that ``word`` resembles, or nothing."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean '{near[0]}'?" if near else ""
