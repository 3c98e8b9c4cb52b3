"""How long benchmarks run: in full, or for a moment to see that they still work.

CI runs every benchmark with ``AMP_NOVA_SMOKE=1``, because what is never run breaks unnoticed. The
figures it prints then mean nothing.
"""

import os
from typing import TypeVar

SMOKE = os.environ.get("AMP_NOVA_SMOKE") == "1"
T = TypeVar("T")


def scaled(full: T, smoke: T) -> T:
    """A duration or size: in full, or the one of a smoke run."""
    return smoke if SMOKE else full


SLOWED = scaled(0.5, 0.05)
"""How much of its speed benchmarks take from one CPU, so that it is the slow core."""
