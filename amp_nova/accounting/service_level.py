"""How fast a host burns the error budget of its service level.

The service level: 95 % of the booking is delivered in 99 % of the minutes in which a booked vCPU
wants CPU time. The burn rate is the share of minutes that missed this, over the 1 % that may. As in
chapter 5 of Google's Site Reliability Workbook, "Alerting on SLOs", a long and a short window have
to exceed a threshold: the long one gives weight, the short one shows that it still happens.
"""

from msgspec import Struct, structs

from amp_nova.accounting.accounts import Accounts
from amp_nova.accounting.delivery import RATIO_BUCKETS
from amp_nova.control.entitlement import Entitlement, Entitlements

MISSED_MAX_RATIO = 0.01
"""The share of minutes that may be missed."""
WINDOWS_MIN = {"5m": 5, "1h": 60}
_MINUTE_NS = 60_000_000_000
_MISSED = RATIO_BUCKETS.index(0.95) + 1
"""How many buckets of the histogram of ratios are missed minutes."""


class ServiceLevel(Struct, frozen=True):
    """vCPU-minutes with demand that ended in the last hour, as of minute ``now`` of the clock.

    ``minutes``: for each minute in which some ended: its number, how many were missed, and all.
    """

    now: int = 0
    minutes: tuple[tuple[int, int, int], ...] = ()

    @property
    def burn_rates(self) -> dict[str, float]:
        """The burn rate over each window, by its name.

        A window counts as at least one vCPU-minute per minute, so that a single bad minute of the
        only busy vCPU does not weigh like an hour.
        """
        rates = {}
        for name, length in WINDOWS_MIN.items():
            recent = [m for m in self.minutes if m[0] > self.now - length]
            missed, total = sum(m[1] for m in recent), sum(m[2] for m in recent)
            rates[name] = missed / max(total, length) / MISSED_MAX_RATIO
        return rates

    def burns(self, threshold: float) -> bool:
        """Whether every window burns faster than ``threshold``; never if that is 0."""
        return 0.0 < threshold < min(self.burn_rates.values())


def advance(
    before: ServiceLevel, was: Accounts, accounts: Accounts, entitlements: Entitlements
) -> ServiceLevel:
    """Add the minutes that ended between two accounts, of bookings that are enforced as booked."""
    now, ended = accounts.time_ns // _MINUTE_NS, [0] * (len(RATIO_BUCKETS) + 1)
    for resource, vcpus in accounts.entries.items():
        if (old := was.entries.get(resource)) is vcpus or old is None:
            continue
        for index, entry in vcpus.items():
            last, ratios = old.get(index), entry.account.ratios
            if last is None or last.account.ratios is ratios:
                continue
            if _enforced(entitlements.get((resource, index))):
                new = zip(ended, last.account.ratios.counts, ratios.counts, strict=True)
                ended = [n + max(0, b - a) for n, a, b in new]
    if now == before.now and not any(ended):
        return before
    kept = tuple(m for m in before.minutes if m[0] > now - max(WINDOWS_MIN.values()))
    added = ((now, sum(ended[:_MISSED]), sum(ended)),) if any(ended) else ()
    return structs.replace(before, now=now, minutes=(*kept, *added))


def _enforced(entitlement: Entitlement | None) -> bool:
    """Whether a booking is enforced as booked: the others are missed for reasons of their own."""
    governed_by = entitlement.governed_by if entitlement else ""
    return entitlement is not None and governed_by in ("booking", "ips") and not entitlement.note
