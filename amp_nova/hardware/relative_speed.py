"""Speed of one workload on the core types of a host."""

from amp_nova.model.topology import CoreType


def gain(types: tuple[CoreType, ...], at: int) -> float | None:
    """Coefficient of a core type over the slowest's."""
    here, slowest = types[at].coefficient, types[0].coefficient
    return here / slowest if here is not None and slowest else None


def speed(types: tuple[CoreType, ...], at: int, speedup: float) -> float:
    """Speed on a core type over the slowest, of a workload that has ``speedup`` on the fastest.

    In between, as far up as the core type's coefficient is; evenly where that is not known.
    """
    if len(types) < 2 or at == 0:
        return 1.0
    here, most = gain(types, at), gain(types, len(types) - 1)
    height = at / (len(types) - 1)
    if here is not None and most is not None and most > 1.0:
        height = (here - 1.0) / (most - 1.0)
    return 1.0 + (speedup - 1.0) * height
