# SPDX-License-Identifier: Apache-2.0
"""What a vCPU was owed and got, and why it got less, on cases worked out by hand."""

import pytest
from msgspec import structs

from amp_nova.accounting.delivery import (
    CAUSES,
    RATIO_BUCKETS,
    Account,
    Conditions,
    add_interval,
)
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.observation import Usage, usage
from amp_nova.model.topology import CoreType
from tests.support.hosts import reading

approx = pytest.approx


def used(run_s=0.0, throttled_s=0.0, others_s=0.0, wall_s=1.0):
    """One interval: what it ran, was throttled, and waited while others ran."""
    return Usage(wall_s, run_s, throttled_s + others_s, throttled_s)


def conditions(refcores=0.5, coefficient=1.0, position=0, types=2, edge_s=0.0):
    booking = VcpuBooking(0, refcores or None)
    return Conditions(position, types, coefficient, booking, edge_s)


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


SPINS = used(run_s=0.5, throttled_s=0.5)
SLOW_CLOCK = structs.replace(SPINS, clock_hz=1.6e9)
SHARED = structs.replace(SPINS, siblings_busy_ratio=0.5)
ALL_CAUSES = structs.replace(
    used(run_s=0.5, others_s=0.2, throttled_s=0.3), clock_hz=1e9, siblings_busy_ratio=1.0
)
SMT = {"clock_hz": 2e9, "smt_busy_factor": 0.6}


@pytest.mark.parametrize(
    ("interval", "ran_under", "ratio", "short_ref_s"),
    [
        pytest.param(SPINS, conditions(), 1.0, {}, id="held at its booking"),
        pytest.param(
            used(run_s=0.25, throttled_s=0.75), conditions(0.5, 2.0, 1), 1.0, {}, id="fast core"
        ),
        pytest.param(used(run_s=0.2), conditions(), 1.0, {}, id="wants less than it booked"),
        pytest.param(
            used(run_s=0.25, throttled_s=0.25), conditions(), 1.0, {}, id="on half of the time"
        ),
        pytest.param(used(run_s=1.0), conditions(), 2.0, {}, id="soft, with idle capacity"),
        pytest.param(used(run_s=0.005), conditions(), None, {}, id="idle"),
        pytest.param(
            used(run_s=0.5, others_s=0.5), conditions(), 1.0, {}, id="waited and got its booking"
        ),
        pytest.param(
            used(run_s=0.2, others_s=0.8), conditions(), 0.4, {"contention": 0.9}, id="contention"
        ),
        pytest.param(used(run_s=1.0), conditions(1.5), 2 / 3, {"core_type": 1.5}, id="core type"),
        pytest.param(
            used(run_s=0.4, throttled_s=0.6), conditions(), 0.8, {"throttle": 0.3}, id="throttled"
        ),
        pytest.param(
            SLOW_CLOCK, on_core(clock_hz=2e9), 0.8, {"frequency": 0.3}, id="a clock below nominal"
        ),
        pytest.param(SHARED, on_core(smt_busy_factor=0.6), 0.8, {"smt": 0.3}, id="busy siblings"),
        pytest.param(
            ALL_CAUSES,
            on_core(1.5, **SMT),
            0.1,
            {"frequency": 0.75, "smt": 0.3, "core_type": 1.5, "contention": 0.6, "throttle": 0.9},
            id="all causes: nothing is counted twice",
        ),
    ],
)
def test_what_is_owed_and_why_it_lacks(interval, ran_under, ratio, short_ref_s):
    """Three equal seconds."""
    account = added([interval] * 3, ran_under)

    assert account.last.ratio == (None if ratio is None else approx(ratio))
    assert by_cause(account) == approx(short_ref_s)
    assert account.ref_s == approx(3.0 * interval.run_s * ran_under.coefficient)
    assert account.cpu_s[ran_under.position] == approx(3.0 * interval.run_s)


def test_how_far_it_was_behind_is_the_worst_of_the_minute():
    """In seconds of its booking; nobody is behind while it sleeps."""
    late = [used(run_s=0.5, throttled_s=0.5)] * 2 + [used(run_s=0.45, throttled_s=0.55)]
    minutes = [*late, *[used()] * 57, *[SPINS] * 3]

    assert added(late, conditions(edge_s=0.2)).last.behind_s == approx(0.1)
    assert added(minutes[:60], conditions(edge_s=0.2)).last.behind_s == approx(0.1)
    assert added(minutes, conditions(edge_s=0.2)).last.behind_s == approx(0.1)
    assert added([used()] * 6, conditions(edge_s=0.2)).last.behind_s == 0.0


class TestShortfall:
    @pytest.mark.parametrize(
        ("clock_hz", "nominal_hz"), [(None, 2e9), (1e9, None), (1.97e9, 2e9), (3e9, 2e9)]
    )
    def test_a_clock_that_is_not_known_or_good_enough_takes_nothing(self, clock_hz, nominal_hz):
        """Nor does a faster one give more than the coefficient says."""
        interval = structs.replace(used(run_s=0.5, throttled_s=0.5), clock_hz=clock_hz)
        account = added([interval] * 3, on_core(clock_hz=nominal_hz))

        assert account.last.ratio == approx(1.0)
        assert by_cause(account) == {}

    @pytest.mark.parametrize(
        ("ran_s", "short_ref_s"),
        [((0.45, 0.55) * 3, 0.0), ((0.4,) * 10, 1.0 - 0.05)],
        ids=["a burst cut by the interval", "a steady lack"],
    )
    def test_up_to_one_periods_capacity_is_carried_over_before_it_counts(self, ran_s, short_ref_s):
        """And no more than that."""
        intervals = [used(run_s=ran, throttled_s=1.0 - ran) for ran in ran_s]

        account = added(intervals, conditions(edge_s=0.1))

        assert sum(account.shortfall_ref_s) == approx(short_ref_s)


FULL, HALF = SPINS, used(run_s=0.25, others_s=0.75)
LONG = used(run_s=0.505, throttled_s=0.505, wall_s=1.01)


class TestWindows:
    def test_a_window_closes_when_it_is_full(self):
        """The ratio is that of the last whole window; the next starts from nothing."""
        assert added([HALF] * 2).last.ratio is None
        assert added([FULL] * 3 + [HALF] * 2).last.ratio == approx(1.0)
        account = added([FULL] * 3 + [HALF] * 3)
        assert (account.last.ratio, account.window.wall_s) == (approx(0.5), 0.0)

    @pytest.mark.parametrize(
        ("intervals", "minutes", "total"),
        [
            ([FULL] * 59, 0, 0.0),
            ([FULL] * 30 + [HALF] * 30 + [FULL] * 60, 2, 1.75),
            ([used()] * 120, 0, 0.0),
            ([used()] * 25 + [HALF] * 10 + [used()] * 25, 1, 0.5),
            ([LONG] * 600, 10, 10.0),
        ],
        ids=[
            "not over yet",
            "delivered over owed in all of it",
            "without demand",
            "little demand",
            "cycles that are a little long do not make minutes longer and longer",
        ],
    )
    def test_a_minute_is_counted_once(self, intervals, minutes, total):
        """Unless nothing was wanted: an idle guest neither keeps nor breaks the service level."""
        ratios = added(intervals).ratios

        assert (sum(ratios.counts), ratios.total) == (minutes, approx(total))

    @pytest.mark.parametrize(
        ("nominal_ips", "own_ips", "run_s", "missed"),
        [(2e9, 0.4e9, 1.0, 0), (2e9, 1e6, 1.0, 0), (0.8e9, 0.8e9, 1.0, 1), (2e9, 0.4e9, 0.5, 1)],
        ids=["slow work", "slower than anything", "a slow core", "neighbours"],
    )
    def test_a_minute_is_not_missed_because_a_guests_work_is_slow(
        self, nominal_ips, own_ips, run_s, missed
    ):
        """A guest could page the operator. What the host lacks is missed all the same."""
        used_s = used(run_s=run_s, others_s=1.0 - run_s)
        interval = structs.replace(used_s, instructions=round(own_ips * run_s))
        core = CoreType("slow", 1.0, nominal_ips=nominal_ips)
        under = structs.replace(conditions(), booking=VcpuBooking(0, ips=1e9), core_type=core)

        counts = added([interval] * 60, under).ratios.counts

        assert sum(counts[: RATIO_BUCKETS.index(0.95) + 1]) == missed

    def test_a_hair_less_is_a_full_window(self):
        """Cycles are never exactly on time."""
        assert added([used(run_s=0.5, wall_s=0.9995)] * 3).last.refcores is not None

    @pytest.mark.parametrize(
        ("ran_under", "refcores", "cpu_s"),
        [(conditions(None, 2.0, 1), 1.4, (0.0, 2.1)), (conditions(0.5, None), None, (2.1, 0.0))],
        ids=["best effort", "unknown speed"],
    )
    def test_what_is_owed_nothing_has_no_ratio(self, ran_under, refcores, cpu_s):
        """What it got is known, unless the speed of its core type is not."""
        account = added([used(run_s=0.7)] * 3, ran_under)

        assert account.last.ratio is None
        assert account.last.refcores == (refcores and approx(refcores))
        assert account.ref_s == approx(3 * (refcores or 0.0))
        assert account.cpu_s == approx(cpu_s)


class TestUsage:
    def test_demand_is_never_more_than_the_time(self):
        """Counters are not read at one instant."""
        assert used(run_s=0.7, throttled_s=0.5).demand_s == 1.0

    def test_throttled_while_asleep_is_no_contention(self):
        """A group can be throttled while its thread does not wait."""
        assert Usage(1.0, 0.5, 0.1, 0.3).contention_s == 0.0

    @pytest.mark.parametrize(
        ("before", "after", "wall_ns"),
        [
            ({"run_s": 1.0}, {"run_s": 0.9}, 10**9),
            ({"wait_s": 1.0}, {"wait_s": 0.9}, 10**9),
            ({"throttled_s": 1.0}, {"throttled_s": 0.9}, 10**9),
            ({}, {"run_s": 1.0}, 0),
            ({}, {"run_s": 1.0}, -(10**12)),
        ],
    )
    def test_counters_or_a_clock_that_go_backwards(self, before, after, wall_ns):
        """Another thread under the same name, for example: nothing is known of the interval."""
        assert usage(reading(**before), reading(**after), wall_ns) is None
