# SPDX-License-Identifier: Apache-2.0
"""Tables as commands print them."""


def cells(text: str) -> list[list[str]]:
    """The cells of every row of the tables in a text, headings included."""
    rows = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]
