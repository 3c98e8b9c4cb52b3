"""What a workload waits for besides pCPUs: I/O, requests and locks; and threads that never wait.

Work is counted in seconds alone on the slowest core type.
"""

import math
from typing import Annotated

from msgspec import Meta, field

from amp_nova.sim.scenarios.document import Keys, NotNegative, Positive, Ratio, one_of
from amp_nova.sim.scenarios.hosts import Step

BYTES_MOST = 1e12


class Io(Keys, frozen=True):
    """What each vCPU transfers: work per byte, the speed of its line, and how far they overlap.

    ``overlap_ratio`` is the part of the bytes that is computed on while others are on the line.
    """

    work_ref_s_per_byte: Annotated[float, Meta(ge=1e-15, le=1)] = field(name="cpu_s_per_byte")
    line_bytes_s: Annotated[float, Meta(ge=1, le=BYTES_MOST)]
    overlap_ratio: Ratio = field(default=1.0, name="overlap")


class Requests(Keys, frozen=True):
    """Requests that wait in one queue for the vCPUs of a guest, in order of arrival.

    They arrive at random or evenly; their work varies around ``work_ref_s``, or is the same.
    """

    per_s: Annotated[float, Meta(ge=1e-6, le=1e4)]
    work_ref_s: Positive = field(name="work_refcore_s")
    arrivals: Annotated[str, one_of("poisson", "regular")] = "poisson"
    service: Annotated[str, one_of("exponential", "fixed")] = "exponential"


class Lock(Keys, frozen=True):
    """A lock of a guest: each vCPU works without it, then with it, in turn."""

    after_ref_s: NotNegative = field(name="after_s")
    hold_ref_s: Step = field(name="hold_s")


class Threads(Keys, frozen=True):
    """Busy threads that a guest's scheduler spreads over the vCPUs that it uses.

    It uses one less above ``steal_high_ratio``, and one more at or below ``steal_low_ratio``.
    """

    count: Annotated[int, Meta(ge=1, le=10_000)]
    steal_high_ratio: Ratio = field(default=math.inf, name="steal_high")
    steal_low_ratio: Ratio = field(default=0.02, name="steal_low")
