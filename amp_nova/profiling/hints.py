"""Speedups that flavors say their instances have (``amp:efficiency``)."""

from amp_nova.model.topology import Topology

HINTS = {"low": 0.1, "medium": 0.5, "high": 0.9}
"""Sensitivities that ``amp:efficiency`` names."""


HINT_MAX = 100.0
"""No core is that many times as fast as another one of its host: a hint above is meant as this."""


def hinted_speedup(hint: float | str | None, topology: Topology) -> float | None:
    """The speedup that ``amp:efficiency`` means on a host; ``None`` without a hint.

    A number is meant as it is, a word by its sensitivity; that says nothing, ``None``, where
    coefficients are not known.
    """
    if not isinstance(hint, str):
        return None if hint is None else min(hint, HINT_MAX)
    known = [t.coefficient for t in topology.core_types if t.coefficient is not None]
    x = HINTS.get(hint)
    if x is None or not known:
        return None
    return (1.0 + x * (known[-1] - 1.0)) / (1.0 + x * (known[0] - 1.0))
