# SPDX-License-Identifier: Apache-2.0
"""Arguments of the programs: errors in one sentence, and values within bounds."""

import argparse
import math
import re
from collections.abc import Callable, Iterable
from typing import NoReturn

from amp_nova.exceptions import ConfigInvalid, sentence


def one_sentence(parser: argparse.ArgumentParser) -> None:
    """Make a parser answer bad input with one sentence and exit status 2, and no usage."""

    def error(message: str) -> NoReturn:
        text = sentence(f"{parser.prog}: {message}; see '{parser.prog} --help'")
        parser.exit(2, f"{text}\n")

    parser.error = error  # type: ignore[method-assign]  # cliff makes the parser itself


class Version(argparse.Action):
    """Prints the installed version; it is read only then, because that takes time."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import importlib.metadata

        print(f"{parser.prog} {importlib.metadata.version('amp-nova')}")
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


def number(low: float, high: float) -> Callable[[str], float]:
    """The type of an argument that is a number from ``low`` to ``high``."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {low:g} to {high:g}")
        return value

    return read


def ips(text: str) -> float:
    """The type of an argument in instructions per second, written as in ``amp:ips``."""
    from amp_nova.flavor.extra_specs import examine

    booking, _ = examine({"amp:ips": text}, 1)
    value = booking.vcpus[0].ips if booking else None
    if value is None or value < 1.0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a decimal from 1 to 1000T, such as 2.5G")
    return value


def pairs(name: str, texts: Iterable[str]) -> dict[str, str]:
    """The values by key of ``KEY=VALUE``; ``ConfigInvalid`` begins with ``name``, what they are."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigInvalid(f"{name} '{text}' is not allowed: write KEY=VALUE")
        if key in values:
            raise ConfigInvalid(f"{name} {key} is given twice: remove one")
        values[key] = value
    return values


def nearest(word: str, words: Iterable[str]) -> str:
    """The end of a sentence: the one of ``words`` that ``word`` resembles, or nothing."""
    import difflib

    near = difflib.get_close_matches(word, list(words), n=1)
    return f": did you mean '{near[0]}'?" if near else ""
