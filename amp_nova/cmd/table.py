"""Tables that commands print: aligned text, CSV, JSON or YAML, with chosen columns and order."""

import argparse
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from amp_nova.cmd.parser import nearest
from amp_nova.exceptions import ConfigInvalid

FORMATS = ("table", "json", "csv", "yaml")
DOCUMENTS = ("table", "json", "yaml")
"""The formats of output that is not a table."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value whose text in a table is not the usual one.

    ``numeric``: its column holds numbers, even if this value is unknown.
    """

    value: object
    text: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Headings, and rows of values or cells.

    ``sections``: in text, the rows with the same value in the first column form one table.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    sections: bool = False

    def lines(self) -> list[str]:
        """The table as text: text is left-aligned, numbers are right-aligned."""
        if not self.sections:
            text = [tuple(self.headings), *(tuple(map(cell, row)) for row in self.rows)]
            return aligned(text, [i for i in range(len(self.headings)) if self._has_text(i)])
        found: list[str] = []
        for name in dict.fromkeys(cell(row[0]) for row in self.rows):
            rows = [row[1:] for row in self.rows if cell(row[0]) == name]
            found += ["", name, *Table(self.headings[1:], rows).lines()]
        return found[1:]

    def _has_text(self, column: int) -> bool:
        values = [row[column] for row in self.rows]
        return any(not v.numeric if isinstance(v, Cell) else isinstance(v, str) for v in values)

    def records(self) -> list[dict[str, object]]:
        """The rows for programs: values by the names of their columns."""
        names = [column_name(heading) for heading in self.headings]
        return [dict(zip(names, map(value_of, row), strict=True)) for row in self.rows]

    def select(self, columns: Sequence[str], sort: str | None) -> "Table":
        """These columns of the table, ordered by one of them (``NAME`` or ``NAME:desc``).

        Raises:
            ConfigInvalid: there is no such column.
        """
        rows = list(self.rows)
        if sort is not None:
            name, _, order = sort.partition(":")
            if order not in ("", "asc", "desc"):
                raise ConfigInvalid(
                    f"--sort {sort} is not allowed: write {name}, {name}:asc or {name}:desc"
                )
            at = self._column("--sort", name)
            known = [row for row in rows if value_of(row[at]) is not None]
            known.sort(key=lambda row: _rank(value_of(row[at])), reverse=order == "desc")
            rows = known + [row for row in rows if value_of(row[at]) is None]
        if not columns:
            return replace(self, rows=rows)
        chosen = [self._column("-c", name) for name in columns]
        return Table([self.headings[i] for i in chosen], [[row[i] for i in chosen] for row in rows])

    def _column(self, option: str, name: str) -> int:
        known = [column_name(heading) for heading in self.headings]
        wanted = column_name(name)
        if wanted not in known:
            hint = nearest(wanted, known) or f": the columns are {', '.join(known)}"
            raise ConfigInvalid(f"{option} {name} is not a column{hint}")
        return known.index(wanted)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--format``, ``-c`` and ``--sort`` to a command that prints a table."""
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    parser.add_argument(
        "-c",
        "--column",
        action="append",
        default=[],
        dest="columns",
        metavar="COLUMN",
        help="print this column, may be repeated; with json and yaml, rows of these columns "
        "instead of the whole document",
    )
    parser.add_argument(
        "--sort", metavar="COLUMN[:desc]", help="order the rows by this column; '-' comes last"
    )


def show(
    args: argparse.Namespace,
    table: Table,
    document: object,
    around: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> None:
    """Print a table as requested by the arguments of ``add_arguments``.

    Args:
        args: the parsed arguments.
        table: what to print as text and as CSV.
        document: what to print as JSON and as YAML unless columns or an order are requested.
        around: lines of text before and after the table, left out if columns are requested.

    Raises:
        ConfigInvalid: there is no such column.
    """
    chosen = table.select(args.columns, args.sort)
    if args.format == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([column_name(heading) for heading in chosen.headings])
        writer.writerows([value_of(value) for value in row] for row in chosen.rows)
    elif args.format == "table":
        before, after = around if not args.columns else ((), ())
        print("\n".join([*before, *chosen.lines(), *after]))
    else:
        partly = args.columns or args.sort is not None
        show_document(args.format, chosen.records() if partly else document)


def show_document(form: str, document: object) -> None:
    """Print plain data as ``json`` or ``yaml``."""
    if form == "yaml":
        import yaml

        print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), end="")
    else:
        print(as_json(document))


def as_json(document: object) -> str:
    """Plain data as JSON; raises ``ValueError`` for a number that JSON does not have."""
    import json

    return json.dumps(document, indent=2, allow_nan=False)


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """The lines of a table, headings included.

    Columns whose index is in ``left`` are left-aligned, the others (numbers) right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def column_name(heading: str) -> str:
    """The name of a column for programs: ``core type`` is ``core_type``."""
    return re.sub("[^a-z0-9]+", "_", heading.lower()).strip("_")


def value_of(value: object) -> object:
    """A value in a row, as programs read it."""
    return value.value if isinstance(value, Cell) else value


def cell(value: object) -> str:
    """A value in a table: four significant digits, a dash for ``None``."""
    if isinstance(value, Cell):
        return value.text
    return number(value, ".4g") if value is None or isinstance(value, float) else str(value)


def number(value: float | None, form: str, absent: str = "-") -> str:
    """A number in a table, in the format ``form``."""
    return absent if value is None else format(value, form)


def formatted(value: float | None, form: str, absent: str = "-") -> Cell:
    """The same as a cell, which keeps the number for programs."""
    return Cell(value, number(value, form, absent), numeric=True)


def _rank(value: Any) -> tuple[bool, Any]:
    """Numbers before text."""
    return isinstance(value, str), value
