"""What a vCPU was owed and got, and why it got less, on cases worked out by hand."""

import pytest
from msgspec import structs

from amp_nova.accounting.delivery import (
    CAUSES,
    RATIO_BUCKETS,
    Account,
    Booked,
    Conditions,
    Ratios,
    add_idle,
    add_interval,
)
from amp_nova.model.observation import Usage, usage
from amp_nova.model.topology import CoreType
from tests.hosts import reading

approx = pytest.approx


def used(run_s=0.0, throttled_s=0.0, others_s=0.0, wall_s=1.0):
    """One interval: what it ran, was throttled, and waited while others ran."""
    return Usage(wall_s, run_s, throttled_s + others_s, throttled_s)


def conditions(refcores=0.5, coefficient=1.0, position=0, types=2, edge_s=0.0):
    return Conditions(position, types, coefficient, Booked(refcores), edge_s)


def on_core(refcores=0.5, **known):
    """The usual conditions on a core type of which this is known."""
    return structs.replace(conditions(refcores), core_type=CoreType("slow", **known))


def added(intervals, ran_under=None, window_s=3.0):
    """The account after these intervals."""
    account = Account()
    for interval in intervals:
        account = add_interval(account, interval, ran_under or conditions(), window_s)
    return account


def by_cause(account):
    """What lacks, by the causes there are."""
    found = zip(CAUSES, account.shortfall_ref_s, strict=True)
    return {cause: short_ref_s for cause, short_ref_s in found if short_ref_s > 1e-9}


class TestFullDelivery:
    def test_always_busy_and_throttled(self):
        """A spinning vCPU that is held at its booking gets 100 %."""
        account = added([used(run_s=0.5, throttled_s=0.5)] * 3)

        assert account.last.ratio == approx(1.0)
        assert account.last.refcores == approx(0.5)
        assert sum(account.shortfall_ref_s) == approx(0.0)

    def test_on_a_fast_core(self):
        """CPU time counts coefficient times."""
        account = added([used(run_s=0.25, throttled_s=0.75)] * 3, conditions(0.5, 2.0, 1))

        assert account.last.ratio == approx(1.0)
        assert account.cpu_s == approx((0.0, 0.75))
        assert account.ref_s == approx(1.5)

    def test_one_that_wants_less_than_it_booked(self):
        """20 % use of a 50 % booking: all it wanted was delivered."""
        account = added([used(run_s=0.2)] * 3)

        assert account.last.ratio == approx(1.0)
        assert account.last.refcores == approx(0.2)
        assert sum(account.shortfall_ref_s) == 0.0

    def test_on_and_off(self):
        """One second on, one off: while on it gets its booking, while off it is owed nothing."""
        account = added([used(run_s=0.5, throttled_s=0.5), used()] * 3, window_s=6.0)

        assert account.last.ratio == approx(1.0)
        assert sum(account.shortfall_ref_s) == approx(0.0)

    def test_on_and_off_within_an_interval(self):
        """Half a second on at 50 %, then asleep: the same, seen through a coarser window."""
        account = added([used(run_s=0.25, throttled_s=0.25)] * 3)

        assert account.last.ratio == approx(1.0)

    def test_soft_may_have_more(self):
        """Idle capacity that was used beyond the booking shows as more than 1."""
        account = added([used(run_s=1.0)] * 3)

        assert account.last.ratio == approx(2.0)
        assert sum(account.shortfall_ref_s) == 0.0

    def test_idle_says_nothing(self):
        """Without demand there is no ratio, rather than 1 or 0."""
        account = added([used(run_s=0.005)] * 3)

        assert account.window.wall_s == 0.0
        assert account.last.ratio is None
        assert account.last.refcores == approx(0.005)


class TestShortfall:
    def test_by_contention(self):
        """Others ran while it waited: it lacks what they took."""
        account = added([used(run_s=0.2, others_s=0.8)] * 3)

        assert account.last.ratio == approx(0.4)
        assert by_cause(account) == approx({"contention": 0.9})

    def test_by_core_type(self):
        """1.5 reference cores on a core worth 1: half a second a second cannot be had there."""
        account = added([used(run_s=1.0)] * 3, conditions(1.5))

        assert account.last.ratio == approx(2 / 3)
        assert by_cause(account) == approx({"core_type": 1.5})

    def test_by_throttling(self):
        """A limit that is lower than it should be."""
        account = added([used(run_s=0.4, throttled_s=0.6)] * 3)

        assert account.last.ratio == approx(0.8)
        assert by_cause(account) == approx({"throttle": 0.3})

    def test_nothing_is_counted_twice(self):
        """Too slow a core, on which others ran too, and a limit besides: the sum is what lacks."""
        account = added(
            [used(run_s=0.5, others_s=0.2, throttled_s=0.3)] * 3, conditions(refcores=1.5)
        )

        lacks = 3 * (1.5 - 0.5)
        assert sum(account.shortfall_ref_s) == approx(lacks)
        assert by_cause(account) == approx({"core_type": 1.5, "contention": 0.6, "throttle": 0.9})

    def test_by_a_clock_below_the_nominal_one(self):
        """The limit gave all its CPU time, at four fifths of the clock; neighbours took no part."""
        slow = structs.replace(used(run_s=0.5, throttled_s=0.5), clock_hz=1.6e9)
        account = added([slow] * 3, on_core(clock_hz=2e9))

        assert account.last.ratio == approx(0.8)
        assert by_cause(account) == approx({"frequency": 0.3})
        assert account.ref_s == approx(1.5)

    def test_by_busy_siblings(self):
        """Half of the time another thread of the core was busy, which costs 0.4 of the speed."""
        shared = structs.replace(used(run_s=0.5, throttled_s=0.5), siblings_busy_ratio=0.5)
        account = added([shared] * 3, on_core(smt_busy_factor=0.6))

        assert account.last.ratio == approx(0.8)
        assert by_cause(account) == approx({"smt": 0.3})

    def test_every_cause_has_its_own_part(self):
        """All five at once add up to what lacks."""
        bad = used(run_s=0.5, others_s=0.2, throttled_s=0.3)
        bad = structs.replace(bad, clock_hz=1e9, siblings_busy_ratio=1.0)
        ran_under = on_core(1.5, clock_hz=2e9, smt_busy_factor=0.6)

        parts = by_cause(added([bad] * 3, ran_under))

        assert parts == approx(
            {"frequency": 0.75, "smt": 0.3, "core_type": 1.5, "contention": 0.6, "throttle": 0.9}
        )
        assert sum(parts.values()) == approx(3 * (1.5 - 0.5 * 0.5 * 0.6))

    @pytest.mark.parametrize(
        ("clock_hz", "nominal_hz"), [(None, 2e9), (1e9, None), (1.97e9, 2e9), (3e9, 2e9)]
    )
    def test_a_clock_that_is_not_known_or_good_enough_takes_nothing(self, clock_hz, nominal_hz):
        """Nor does a faster one give more than the coefficient says."""
        interval = structs.replace(used(run_s=0.5, throttled_s=0.5), clock_hz=clock_hz)
        account = added([interval] * 3, on_core(clock_hz=nominal_hz))

        assert account.last.ratio == approx(1.0)
        assert by_cause(account) == {}

    def test_contention_within_the_booking_only(self):
        """It waited long and got its booking all the same: nothing lacks."""
        account = added([used(run_s=0.5, others_s=0.5)] * 3)

        assert account.last.ratio == approx(1.0)
        assert sum(account.shortfall_ref_s) == approx(0.0)

    def test_a_burst_cut_by_the_interval_is_no_shortfall(self):
        """Up to one period's capacity is carried over before it counts."""
        uneven = [used(run_s=0.45, throttled_s=0.55), used(run_s=0.55, throttled_s=0.45)]

        account = added(uneven * 3, conditions(edge_s=0.1))

        assert sum(account.shortfall_ref_s) == approx(0.0)

    def test_what_lacks_beyond_a_period_counts(self):
        """A steady lack is counted but for one period's capacity."""
        account = added([used(run_s=0.4, throttled_s=0.6)] * 10, conditions(edge_s=0.1))

        assert sum(account.shortfall_ref_s) == approx(1.0 - 0.05)


class TestWindows:
    def test_a_window_closes_when_it_is_full(self):
        """The ratio is that of the last whole window; the next starts from nothing."""
        full, half = used(run_s=0.5, throttled_s=0.5), used(run_s=0.25, others_s=0.75)

        assert added([half] * 2).last.ratio is None
        assert added([full] * 3 + [half] * 2).last.ratio == approx(1.0)
        account = added([full] * 3 + [half] * 3)
        assert (account.last.ratio, account.window.wall_s) == (approx(0.5), 0.0)

    def test_a_minute_is_counted_once(self):
        """Its ratio is what was delivered over what was owed in all of it."""
        full, half = used(run_s=0.5, throttled_s=0.5), used(run_s=0.25, others_s=0.75)

        assert sum(added([full] * 59).ratios.counts) == 0
        account = added([full] * 30 + [half] * 30 + [full] * 60)
        assert (sum(account.ratios.counts), account.ratios.total) == (2, approx(1.75))

    def test_a_minute_without_demand_is_not_counted(self):
        """An idle guest neither keeps nor breaks the service level."""
        assert sum(added([used()] * 120).ratios.counts) == 0

    def test_a_minute_with_little_demand_counts(self):
        """Ten seconds of demand in a minute say what was delivered in that minute."""
        account = added([used()] * 25 + [used(run_s=0.25, others_s=0.75)] * 10 + [used()] * 25)

        assert (sum(account.ratios.counts), account.ratios.total) == (1, approx(0.5))

    def test_minutes_keep_their_pace(self):
        """Cycles that are a little long do not make minutes longer and longer."""
        long = used(run_s=0.505, throttled_s=0.505, wall_s=1.01)
        account = added([long] * 600)

        assert sum(account.ratios.counts) == 10

    def test_a_hair_less_is_a_full_window(self):
        """Cycles are never exactly on time."""
        assert added([used(run_s=0.5, wall_s=0.9995)] * 3).last.refcores is not None

    def test_best_effort_has_no_ratio(self):
        """It is owed nothing, but what it got is known."""
        account = added([used(run_s=0.7)] * 3, conditions(None, 2.0, 1))

        assert account.last.ratio is None
        assert account.last.refcores == approx(1.4)
        assert account.cpu_s == approx((0.0, 2.1))

    def test_unknown_speed_has_neither(self):
        """CPU time is known, what it is worth is not."""
        account = added([used(run_s=0.7)] * 3, conditions(0.5, None))

        assert (account.last.ratio, account.last.refcores, account.ref_s) == (None, None, 0.0)
        assert account.cpu_s == approx((2.1, 0.0))

    def test_cpu_time_is_kept_by_core_type(self):
        """A move between types splits it; other core types than before begin anew."""
        account = added([used(run_s=0.5)])
        account = add_interval(
            account, used(run_s=0.25), conditions(position=1, coefficient=2.0), 3.0
        )

        assert account.cpu_s == approx((0.5, 0.25))
        assert account.ref_s == approx(1.0)
        other = add_interval(account, used(run_s=0.25), conditions(position=2, types=3), 3.0)
        assert other.cpu_s == approx((0.0, 0.0, 0.25))


@pytest.mark.parametrize(
    ("ratio", "index"), [(0.0, 0), (0.5, 0), (0.51, 1), (1.0, 6), (1.005, 7), (1.1, 10), (9.0, 11)]
)
def test_ratios_are_counted_by_bucket(ratio, index):
    """Upper bounds belong to the bucket; above the last one there is one more."""
    ratios = Ratios().with_one(ratio)

    assert ratios.counts.index(1) == index <= len(RATIO_BUCKETS)
    assert (sum(ratios.counts), ratios.total) == (1, ratio)


class TestIdle:
    def test_idle_time_is_as_many_idle_intervals(self):
        """However it is divided: nothing is owed, and the last window delivered nothing."""
        busy = added([used(run_s=0.5, throttled_s=0.5)] * 4)

        at_once = add_idle(busy, 200.0, conditions(), 3.0, counted=False)
        by_second = added([used(run_s=0.5, throttled_s=0.5)] * 4 + [used()] * 200)

        assert at_once.ratios == by_second.ratios
        assert sum(at_once.ratios.counts) == 1
        assert at_once.minute.wall_s == approx(by_second.minute.wall_s)
        assert at_once.last == by_second.last
        assert at_once.window.wall_s == approx(by_second.window.wall_s)
        assert at_once.cpu_s == by_second.cpu_s
        assert at_once.recent.demand_s == approx(by_second.recent.demand_s)

    def test_counted_or_not(self):
        """No instructions were retired, or nobody knows."""
        for counted, expected in ((True, 0.0), (False, None)):
            account = add_idle(Account(), 3.0, conditions(), 3.0, counted=counted)
            assert account.last.ips == expected


class TestUsage:
    def test_difference_of_two_readings(self):
        """In seconds; waiting includes being throttled, which is told apart."""
        before = reading(run_s=5.0, wait_s=2.0, throttled_s=1.0)
        after = reading(run_s=5.4, wait_s=2.5, throttled_s=1.2)

        found = usage(before, after, 10**9)

        assert (found.wall_s, found.run_s, found.wait_s) == approx((1.0, 0.4, 0.5))
        assert found.demand_s == approx(0.9)
        assert found.contention_s == approx(0.3)

    def test_demand_is_never_more_than_the_time(self):
        """Counters are not read at one instant."""
        assert used(run_s=0.7, throttled_s=0.5).demand_s == 1.0

    def test_throttled_while_asleep_is_no_contention(self):
        """A group can be throttled while its thread does not wait."""
        assert Usage(1.0, 0.5, 0.1, 0.3).contention_s == 0.0

    @pytest.mark.parametrize("counter", ["run_s", "wait_s", "throttled_s"])
    def test_counters_that_go_backwards(self, counter):
        """Another thread under the same name: nothing is known of the interval."""
        assert usage(reading(**{counter: 1.0}), reading(**{counter: 0.9}), 10**9) is None

    @pytest.mark.parametrize("wall_ns", [0, -1, -(10**12)])
    def test_a_clock_that_goes_backwards(self, wall_ns):
        """Nothing is known of the interval."""
        assert usage(reading(), reading(run_s=1.0), wall_ns) is None
