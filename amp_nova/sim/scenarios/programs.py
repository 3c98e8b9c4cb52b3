"""What a workload waits for besides pCPUs: I/O, requests and locks; and threads that never wait.

Work is counted in seconds alone on the slowest core type.
"""

import math
from dataclasses import dataclass

from amp_nova.sim.scenarios.document import Value
from amp_nova.sim.scenarios.hosts import STEP_MIN_S

BYTES_MOST = 1e12
REQUESTS_MOST = 1e4
ARRIVALS = ("poisson", "regular")
SERVICES = ("exponential", "fixed")
THREADS_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Io:
    """What each vCPU transfers: work per byte, the speed of its line, and how far they overlap.

    ``overlap_ratio`` is the part of the bytes that is computed on while others are on the line.
    """

    work_ref_s_per_byte: float
    line_bytes_s: float
    overlap_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that wait in one queue for the vCPUs of a guest, in order of arrival.

    ``poisson``: whether they arrive at random, else evenly; ``exponential``: whether their work
    varies at random around ``work_ref_s``, else it is the same.
    """

    per_s: float
    work_ref_s: float
    poisson: bool = True
    exponential: bool = True


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock of a guest: each vCPU works without it, then with it, in turn."""

    after_ref_s: float
    hold_ref_s: float


@dataclass(frozen=True, slots=True)
class Threads:
    """Busy threads that a guest's scheduler spreads over the vCPUs that it uses.

    It uses one less above ``steal_high_ratio``, and one more at or below ``steal_low_ratio``.
    """

    count: int
    steal_high_ratio: float = math.inf
    steal_low_ratio: float = 0.02


def io(value: Value) -> Io:
    """What a vCPU transfers."""
    required = ("cpu_s_per_byte", "line_bytes_s")
    keys = value.fields((*required, "overlap"), required)
    return Io(
        keys["cpu_s_per_byte"].number(1e-15, 1),
        keys["line_bytes_s"].number(1, BYTES_MOST),
        keys["overlap"].number(0, 1) if "overlap" in keys else 1.0,
    )


def requests(value: Value) -> Requests:
    """The requests of a guest."""
    required = ("per_s", "work_refcore_s")
    keys = value.fields((*required, "arrivals", "service"), required)
    arrivals, service = keys.get("arrivals"), keys.get("service")
    return Requests(
        keys["per_s"].number(1e-6, REQUESTS_MOST),
        keys["work_refcore_s"].number(0, above=True),
        arrivals is None or arrivals.one_of(ARRIVALS, "how requests arrive") == "poisson",
        service is None or service.one_of(SERVICES, "how work varies") == "exponential",
    )


def lock(value: Value) -> Lock:
    """The lock of a guest."""
    required = ("after_s", "hold_s")
    keys = value.fields(required, required)
    return Lock(keys["after_s"].number(0), keys["hold_s"].number(STEP_MIN_S))


def threads(value: Value) -> Threads:
    """The busy threads of a guest, and when it folds."""
    keys = value.fields(("count", "steal_high", "steal_low"), ("count",))
    ratios = {f"{k}_ratio": keys[k].number(0, 1) for k in ("steal_high", "steal_low") if k in keys}
    found = Threads(keys["count"].whole(1, THREADS_MOST), **ratios)
    if found.steal_low_ratio >= found.steal_high_ratio:
        raise value.wrong(
            f"{value.path} has steal_low {found.steal_low_ratio:g} and steal_high "
            f"{found.steal_high_ratio:g}: give a steal_low below steal_high"
        )
    return found
