"""CFS bandwidth limits (the kernel's ``sched-bwc.rst``), and what is written of a vCPU with them.

The guard shares this module, so it needs nothing but the standard library.
"""

from dataclasses import dataclass
from typing import NamedTuple

from amp_nova.model import cpulist

TOLERANCE = 1e-9
"""In cores: sums that differ by less than this are equal (floating-point rounding)."""
PERIOD_MIN_US = 20_000
PERIOD_USUAL_MAX_US = 100_000
PERIOD_MAX_US = 1_000_000
QUOTA_MIN_US = 1_000
"""The kernel refuses a smaller quota."""
QUOTA_AIM_US = 5_000
HYSTERESIS_RATIO = 0.01
"""A limit that is off by no more than this, relative to what the booking takes at the present
speed, is not rewritten: each write gives away up to a period's quota."""


class Bandwidth(NamedTuple):
    """A CFS bandwidth limit: at most ``quota_us`` of CPU time in every ``period_us``."""

    quota_us: int
    period_us: int

    @property
    def cores(self) -> float:
        """The limit as a wall-clock share of one pCPU."""
        return self.quota_us / self.period_us


def period_us(least_cores: float) -> int:
    """The bandwidth period of a vCPU whose smallest quota is ``least_cores`` of one pCPU.

    A short period keeps jitter low, but the guest resumes with cold caches after each throttling.
    A quota of about 5 ms per period, with a period of 20 to 100 ms, balances the two; bookings too
    small for ``QUOTA_MIN_US`` get a period of up to 1 s.
    """
    aim = min(max(QUOTA_AIM_US / least_cores, PERIOD_MIN_US), PERIOD_USUAL_MAX_US)
    return int(min(max(aim, QUOTA_MIN_US / least_cores), PERIOD_MAX_US))


def bandwidth(share_cores: float, period: int) -> Bandwidth | None:
    """The limit for ``share_cores`` of one pCPU; ``None`` (no limit) for a whole pCPU or more."""
    if share_cores >= 1.0 - TOLERANCE:
        return None
    return Bandwidth(max(QUOTA_MIN_US, round(share_cores * period)), period)


@dataclass(frozen=True, slots=True)
class Step:
    """One write: an affinity or, when ``pcpus`` is ``None``, a bandwidth limit."""

    pcpus: frozenset[int] | None = None
    bandwidth: Bandwidth | None = None


def described(step: Step) -> str:
    """A step in words."""
    if step.pcpus is not None:
        return f"pCPUs {cpulist.show(step.pcpus)}"
    if step.bandwidth is None:
        return "no quota"
    return f"quota {step.bandwidth.quota_us}/{step.bandwidth.period_us} us"


@dataclass(frozen=True, slots=True)
class SafeState:
    """What shall be in force for a vCPU while no agent is in control.

    ``limits``: the right limit on the pCPUs of each core type; empty: the limit it had before the
    agent's first change. ``pcpus``: the affinity it gets, unless its present affinity lies within
    one core type of ``limits`` or within ``pcpus``; ``None``: the affinity it had before the
    agent's first change. ``leave``: amp-nova must not change it.
    """

    pcpus: frozenset[int] | None = None
    limits: tuple[tuple[frozenset[int], Bandwidth | None], ...] = ()
    leave: bool = False
