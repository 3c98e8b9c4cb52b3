"""Validation of policy parameters. Each error names the value and what is allowed."""

import math
from collections.abc import Collection

PER_VCPU = "per_vcpu=true"
"""Appended to a policy's name, after a colon, if this parameter makes the policy compare vCPUs
instead of instances."""


def at_least(name: str, value: float, minimum: float) -> None:
    """Raise ``ValueError`` unless the value is a finite number of at least ``minimum``."""
    if not (math.isfinite(value) and value >= minimum):
        raise ValueError(f"{name}={value:g} is not allowed: give a number of at least {minimum:g}")


def ratio(name: str, value: float) -> None:
    """Raise ``ValueError`` unless the value is between 0 and 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value:g} is not allowed: give a number from 0 to 1")


def sections(value: str, known: Collection[str]) -> frozenset[str]:
    """Sections of a policy's paper that it follows as printed, from ``printed=2.2,3.1``.

    Raises ``ValueError`` unless all are among those ``known``.
    """
    wanted = frozenset(part.strip() for part in value.split(",") if part.strip())
    if unknown := sorted(wanted - frozenset(known)):
        raise ValueError(
            f"printed={unknown[0]} is not a section that can be followed as printed: "
            f"give {', '.join(known)}, or several with commas"
        )
    return wanted
