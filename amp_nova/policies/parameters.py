"""Validation of policy parameters. Each error names the value and what is allowed."""

import math


def at_least(name: str, value: float, minimum: float) -> None:
    """Raise ``ValueError`` unless the value is a finite number of at least ``minimum``."""
    if not (math.isfinite(value) and value >= minimum):
        raise ValueError(f"{name}={value:g} is not allowed: give a number of at least {minimum:g}")


def ratio(name: str, value: float) -> None:
    """Raise ``ValueError`` unless the value is between 0 and 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value:g} is not allowed: give a number from 0 to 1")
