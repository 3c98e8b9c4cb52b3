"""Checks of policies' parameters: one sentence that names the value and what is allowed."""

import math


def at_least(name: str, value: float, least: float) -> None:
    """``ValueError`` unless a parameter is a number from ``least`` up."""
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name}={value:g} is not allowed: give a number from {least:g} up")


def ratio(name: str, value: float) -> None:
    """``ValueError`` unless a parameter is from 0 to 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value:g} is not allowed: give a number from 0 to 1")
