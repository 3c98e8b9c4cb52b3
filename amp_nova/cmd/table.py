"""Aligned text tables, for commands."""

from collections.abc import Collection, Mapping, Sequence


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


def sections(tables: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Several tables, each under its heading."""
    return "\n\n".join("\n".join([name, *aligned(rows)]) for name, rows in tables.items())


def cell(value: object) -> str:
    """A value in a table: four significant digits, a dash for ``None``."""
    return number(value, ".4g") if value is None or isinstance(value, float) else str(value)


def number(value: float | None, form: str, absent: str = "-") -> str:
    """A number in a table, in the format ``form``."""
    return absent if value is None else format(value, form)
