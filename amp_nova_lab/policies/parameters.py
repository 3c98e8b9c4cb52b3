# SPDX-License-Identifier: Apache-2.0
"""Checks of parameters of published policies."""

from collections.abc import Collection


def ratio(name: str, value: float) -> None:
    """Raise ``ValueError`` unless the value is between 0 and 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value:g} is not allowed: give a number from 0 to 1")


def sections(value: str, available: Collection[str]) -> frozenset[str]:
    """Sections of a policy's paper that it follows as printed, from ``printed=2.2,3.1``.

    Raises ``ValueError`` unless all are among those ``available``.
    """
    numbers = frozenset(part.strip() for part in value.split(",") if part.strip())
    if unknown := sorted(numbers - frozenset(available)):
        raise ValueError(
            f"printed={unknown[0]} is not a section that can be followed as printed: "
            f"give {', '.join(available)}, or several with commas"
        )
    return numbers
