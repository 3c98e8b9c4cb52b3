# SPDX-License-Identifier: Apache-2.0
"""How many examples a property is tried with: all, or a quarter in ``tools/test --fast``."""

import os

FAST = os.environ.get("AMP_NOVA_FAST") == "1"
DEFAULT = 60
"""For properties that do not say; most of their time is spent on making up examples."""


def examples(number: int) -> int:
    """The number of examples for this run."""
    return max(2, number // 4) if FAST else number
