"""CFS bandwidth limits: a quota of CPU time in every period."""

from dataclasses import dataclass

TOLERANCE = 1e-9
"""Slack of comparisons between sums of decimals, in cores."""


PERIOD_MIN_US = 20_000


PERIOD_USUAL_MAX_US = 100_000


PERIOD_MAX_US = 1_000_000


QUOTA_MIN_US = 1_000


QUOTA_AIM_US = 5_000


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A CFS bandwidth limit: at most ``quota_us`` of CPU time in every ``period_us``."""

    quota_us: int
    period_us: int

    @property
    def cores(self) -> float:
        """The limit as a wall share of one pCPU."""
        return self.quota_us / self.period_us


def period_us(least_cores: float) -> int:
    """The bandwidth period for a vCPU whose least quota is ``least_cores``.

    Short periods keep jitter low, but every throttling costs the guest a cold restart, so a small
    quota gets a longer period: runs of about 5 ms, period 20 to 100 ms. The kernel takes no quota
    under 1 ms, so tiny bookings get up to 1 s.
    """
    aim = min(max(QUOTA_AIM_US / least_cores, PERIOD_MIN_US), PERIOD_USUAL_MAX_US)
    return int(min(max(aim, QUOTA_MIN_US / least_cores), PERIOD_MAX_US))


def bandwidth(share_cores: float, period: int) -> Bandwidth | None:
    """The limit that holds a vCPU at ``share_cores``; ``None`` when one whole pCPU is no limit."""
    if share_cores >= 1.0 - TOLERANCE:
        return None
    return Bandwidth(max(QUOTA_MIN_US, round(share_cores * period)), period)
