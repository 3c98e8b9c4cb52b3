"""The booking of a Nova flavor."""

import functools
from collections.abc import Mapping

from amp_nova.exceptions import sentence
from amp_nova.flavor.extra_specs import Booking, examine


@functools.lru_cache(maxsize=1024)
def _examine(specs: tuple[tuple[str, str], ...], vcpus: int) -> tuple[Booking | None, str]:
    booking, errors = examine(dict(specs), vcpus)
    return booking, sentence("; ".join(errors))


def read_booking(specs: Mapping[str, str], vcpus: int) -> tuple[Booking | None, str]:
    """The booking in a flavor's extra specs, or ``None`` and the errors in them; cached."""
    return _examine(tuple(sorted(specs.items())), vcpus)
