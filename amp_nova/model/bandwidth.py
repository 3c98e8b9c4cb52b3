# SPDX-License-Identifier: Apache-2.0
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
"""More than a kernel timer tick at 250 Hz: on a full core, smaller quotas are not used up in every
period, and the rest is lost. Nine vCPUs of 0.1 got 0.976 of it at 2 ms in 20, 0.962 at 2.7 in 27,
0.997 at 4 in 40 and 0.996 at 5 in 50 (Linux 6.18)."""
TICK_S = 0.004
"""A kernel timer tick at 250 Hz, by which a quota may be overrun; 1 ms where the kernel has 1000.
Afterwards the vCPU waits until its quota has made up for it."""
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

    @property
    def delay_s(self) -> float:
        """How far a vCPU that wants to run may fall behind a core of this speed, in seconds.

        In any ``t`` seconds it gets at least ``cores * (t - delay_s)``, but for the 2 % that it may
        lose on a full core, where a quota is not always used up in its period. That is the delay of
        a periodic resource (Shin and Lee 2003, equation 10), whose quota may come at the begin of
        one period and at the end of the next, and of two ticks: one by which an earlier quota was
        overrun, and one by which the scheduler, which is fair and knows no deadlines, may be late.
        """
        return 2.0 * (self.period_us - self.quota_us) / 1e6 + 2.0 * TICK_S / self.cores


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


def reference_delay_s(refcores: float | None) -> float | None:
    """``Bandwidth.delay_s`` of a booking on a reference core; ``None`` if nothing limits it."""
    limit = bandwidth(refcores, period_us(refcores)) if refcores else None
    return limit.delay_s if limit else None


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
