"""Speed on the core types of a host, relative to the slowest type."""

from amp_nova.model.topology import CoreType


def gain(types: tuple[CoreType, ...], at: int) -> float | None:
    """The coefficient of the core type at ``at`` over that of the slowest; ``None``: unknown."""
    here, slowest = types[at].coefficient, types[0].coefficient
    return here / slowest if here is not None and slowest else None


def speed(types: tuple[CoreType, ...], at: int, speedup: float) -> float:
    """The speed, on the core type at ``at``, of a workload with ``speedup`` on the fastest type.

    On types in between it is interpolated linearly by coefficient or, where coefficients are
    unknown, by position.
    """
    if len(types) < 2 or at == 0:
        return 1.0
    here, most = gain(types, at), gain(types, len(types) - 1)
    height = at / (len(types) - 1)
    if here is not None and most is not None and most > 1.0:
        height = (here - 1.0) / (most - 1.0)
    return 1.0 + (speedup - 1.0) * height
