"""Speedups that flavors state for their instances (``amp:efficiency``)."""

from amp_nova.model.topology import Topology

HINTS = {"low": 0.1, "medium": 0.5, "high": 0.9}
"""The sensitivity to core speed, 0 to 1, that each word of ``amp:efficiency`` stands for."""


HINT_MAX = 100.0
"""Upper bound on hints: no core is more than this many times as fast as another of its host."""


def hinted_speedup(hint: float | str | None, topology: Topology) -> float | None:
    """The speedup on this host that ``amp:efficiency`` stands for.

    A number is the speedup itself. A word of sensitivity x stands for ``(1 + x (fast - 1)) / (1 +
    x (slow - 1))``, with the coefficients of the fastest and the slowest core type. ``None``: no
    hint, or the coefficients are unknown.
    """
    if not isinstance(hint, str):
        return None if hint is None else min(hint, HINT_MAX)
    known = [t.coefficient for t in topology.core_types if t.coefficient is not None]
    x = HINTS.get(hint)
    if x is None or not known:
        return None
    return (1.0 + x * (known[-1] - 1.0)) / (1.0 + x * (known[0] - 1.0))
