# SPDX-License-Identifier: Apache-2.0
"""What the commands of ``amp-nova`` and of ``openstack amp`` share: how they end, what they print.

It needs cliff alone, so that ``openstack amp`` works where there is no agent.
"""

import argparse
import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cliff import command, lister

from amp_nova.cmd.arguments import nearest, one_sentence
from amp_nova.exceptions import AmpError, AnswerIsNo, ConfigInvalid

T = TypeVar("T")


class AmpCommand:
    """Exit status 0 (ok), 1 (the answer is "no") or 2 (bad input, named in one sentence).

    It comes before one of cliff's classes. A command that ends with another status than 0 without
    an error sets ``status``.
    """

    app: Any
    log: Any = logging.getLogger("amp_nova")
    status = 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The parser, with cliff's arguments and the command's own."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)  # type: ignore[misc]
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        one_sentence(parser)
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command and return its exit status."""
        try:
            return super().run(parsed_args) or self.status  # type: ignore[misc]
        except AmpError as exc:
            self.log.error("%s", exc.advised)
            return 1 if isinstance(exc, AnswerIsNo) else 2

    def produce_output(self, parsed_args: argparse.Namespace, columns: Any, data: Any) -> int:
        """Print the result; ``ConfigInvalid`` for a column that does not exist."""
        headings = {_plain(column): column for column in columns}
        for names in (parsed_args.columns, getattr(parsed_args, "sort_columns", [])):
            for name in names:  # cliff ignores what it does not know
                if _plain(name) not in headings:
                    every = f": the columns are {', '.join(headings)}"
                    hint = nearest(_plain(name), headings) or every
                    raise ConfigInvalid(f"'{name}' is not a column{hint}")
            # older versions of cliff compare those to sort by as they are typed
            names[:] = [headings[_plain(name)] for name in names]
        if parsed_args.formatter == "table" and isinstance(self, lister.Lister):
            # For people; the other formats have their own word for it.
            data = [["-" if cell is None else cell for cell in row] for row in data]
        return super().produce_output(parsed_args, columns, data) or 0  # type: ignore[misc]


def _plain(column: str) -> str:
    """The name of a column as cliff compares it: ``Core Type`` is ``core_type``."""
    return column.lower().strip().replace(" ", "_")


class _Quick(AmpCommand):
    """A command of ``amp-nova``, whose help comes at once."""

    _epilog = ""

    def get_epilog(self) -> str:
        """The example alone: cliff reads all installed packages to name the one it comes from."""
        return self._epilog


class Command(_Quick, command.Command):
    """A command of ``amp-nova`` that prints no table."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a ``Report`` prints: a table, and the document that it is a part of.

    ``above`` and ``below``: lines around the table, for people.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    document: object
    above: Sequence[str] = ()
    below: Sequence[str] = ()


class Report(_Quick, lister.Lister):
    """A command of ``amp-nova`` that prints a table.

    ``-f json`` and ``-f yaml`` print the document, unless columns or an order are chosen.
    """

    _answer: Answer

    def answer(self, args: argparse.Namespace) -> Answer:
        """What to print; raises ``AmpError``."""
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Columns and rows."""
        self._answer = self.answer(parsed_args)
        return self._answer.columns, self._answer.rows

    def produce_output(self, parsed_args: argparse.Namespace, columns: Any, data: Any) -> int:
        """Print the rows, or all that belongs to them."""
        answer, form, out = self._answer, parsed_args.formatter, self.app.stdout
        chosen = parsed_args.columns or parsed_args.sort_columns
        if chosen or form not in ("table", "json", "yaml"):
            return super().produce_output(parsed_args, columns, data)
        if form == "json":
            print(as_json(answer.document, None if parsed_args.noindent else 2), file=out)
            return 0
        if form == "yaml":
            import yaml

            yaml.safe_dump(answer.document, out, sort_keys=False, allow_unicode=True)
            return 0
        print(*answer.above, sep="\n", end="\n" * bool(answer.above), file=out)
        if answer.rows:
            super().produce_output(parsed_args, columns, data)
        print(*answer.below, sep="\n", end="\n" * bool(answer.below), file=out)
        return 0


def as_json(document: object, indent: int | None = 2) -> str:
    """Plain data as JSON; raises ``ValueError`` for a number that JSON does not have."""
    import json

    return json.dumps(document, indent=indent, allow_nan=False)


def short(value: T) -> T | float:
    """A number for people, with four significant digits; anything else stays as it is."""
    if not isinstance(value, float):
        return value
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() and rounded >= 10_000 else rounded


def progress(text: str) -> None:
    """Replace the progress line on standard error; does nothing unless that is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


class Screen:
    """Lines at the bottom of a terminal, drawn again and again; long ones are cut."""

    def __init__(self) -> None:
        self._lines = 0

    def draw(self, text: str) -> None:
        """Draw a text in place of the one before."""
        columns, lines = shutil.get_terminal_size()
        cut = [line[:columns] for line in text.splitlines()[: lines - 1]]
        up = f"\033[{self._lines}A" if self._lines else ""
        print(f"{up}\r\033[J", *(f"{line}\n" for line in cut), sep="", end="", flush=True)
        self._lines = len(cut)
