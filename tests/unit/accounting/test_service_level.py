"""How fast an error budget burns."""

from types import SimpleNamespace

import pytest

from amp_nova.accounting.accounts import AccountEntry, Accounts
from amp_nova.accounting.delivery import Account, Ratios
from amp_nova.accounting.service_level import ServiceLevel, advance

MINUTE_NS = 60_000_000_000


def entitlements(vcpus, governed_by="booking", note=None):
    made = SimpleNamespace(governed_by=governed_by, note=note)
    return {("vm", index): made for index in range(vcpus)}


def accounts(minute, ratios):
    """The accounts of a domain's vCPUs in that minute; ``ratios``: the histogram of each."""
    vcpus = {i: AccountEntry("a", 0, None, None, Account(ratios=r)) for i, r in enumerate(ratios)}
    return Accounts(minute * MINUTE_NS, {"vm": vcpus})


def after(minutes, **said):
    """The service level after vCPUs got these ratios, minute by minute; ``None``: no demand."""
    vcpus = len(minutes[0])
    level, ratios = ServiceLevel(), [Ratios()] * vcpus
    was = accounts(0, ratios)
    for number, got in enumerate(minutes, start=1):
        ratios = [r if g is None else r.with_one(g) for r, g in zip(ratios, got, strict=True)]
        now = accounts(number, ratios)
        level = advance(level, was, now, entitlements(vcpus, **said))
        was = now
    return level


def test_a_burn_rate_is_the_share_of_missed_minutes_over_what_may_be_missed():
    """20 vCPUs for an hour, of which one gets half of its booking: 5 % over 1 %."""
    level = after([[0.5] + [1.0] * 19] * 60)

    assert level.burn_rates == pytest.approx({"5m": 5.0, "1h": 5.0})


def test_minutes_leave_the_windows():
    """An hour after the last missed minute there is none; five minutes for the short window."""
    bad, good = [[0.5] * 20] * 10, [[1.0] * 20]

    assert after(bad + good * 5).burn_rates["5m"] == 0.0
    assert after(bad + good * 5).burn_rates["1h"] == pytest.approx(100.0 * 10 / 15)
    assert after(bad + good * 60).burn_rates["1h"] == 0.0


def test_one_minute_of_the_only_busy_vcpu_does_not_weigh_like_an_hour():
    """It takes nine such minutes to exceed the rate that pages, and with ten vCPUs one."""
    assert not after([[0.5]] * 8).burns(14.4)
    assert after([[0.5]] * 9).burns(14.4)
    assert after([[0.5] * 10]).burns(14.4)


def test_a_problem_that_is_over_burns_no_longer():
    """However many minutes of the last hour were missed; nor beyond the default threshold, 0."""
    bad = [[0.5] * 10] * 30

    assert after(bad).burns(14.4)
    assert not after(bad).burns(0.0)
    assert not after(bad + [[1.0] * 10] * 5).burns(14.4)


@pytest.mark.parametrize(
    "said",
    [{"governed_by": "excluded"}, {"governed_by": "none"}, {"note": "over-booked: no capacity"}],
)
def test_what_enforcement_does_not_cause_does_not_count(said):
    """Bookings that are paused, or that found no capacity."""
    assert after([[0.5] * 10] * 10, **said) == ServiceLevel(10)


def test_minutes_without_demand_do_not_count():
    """They are neither kept nor missed."""
    assert after([[0.5, None]] * 60).burn_rates["1h"] == pytest.approx(100.0)


def test_counters_that_start_again_are_not_missed_minutes():
    """A vCPU that is seen for the first time, and one whose account began again."""
    full, empty = accounts(1, [Ratios().with_one(0.5)]), accounts(2, [Ratios()])

    assert not advance(ServiceLevel(), Accounts(), full, entitlements(1)).minutes
    assert advance(ServiceLevel(), full, empty, entitlements(1)).minutes in ((), ((2, 0, 0),))
