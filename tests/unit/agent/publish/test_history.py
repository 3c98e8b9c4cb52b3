"""The last ten minutes, as the page remembers them."""

import sys
from dataclasses import replace

import pytest

from amp_nova.accounting.delivery import CAUSES, Account, Last
from amp_nova.agent.publish import history
from amp_nova.agent.publish.history import CHANGES_MAX, POINTS_MAX, History, lost_ref_s, series
from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.model.bandwidth import Bandwidth
from tests import reports
from tests.reports import best_effort, booked, instance, ips

KEY = ("uuid-of-instance-00000001", 0)


def short(seconds, delivered=0.4):
    """An instance that lacked so many reference-core seconds by contention so far."""
    account = reports.account(
        shortfall_ref_s=(0.0, seconds, 0.0, 0.0, 0.0), last=Last(0.8, delivered)
    )
    return instance(booked(account=account))


def after(*cycles, step_s=5.0):
    """The history after these cycles, ``step_s`` apart."""
    found = History()
    for i, cycle in enumerate(cycles):
        found = history.advance(found, cycle, 1000.0 + i * step_s)
    return found


def limited(reason, quota_us=25000, key=KEY):
    """A cycle that changes a limit."""
    change = Change(key, (Step(bandwidth=Bandwidth(quota_us, 100000)),), reason)
    return reports.cycle(instance(booked()), changes=Changes((change,)))


def test_booked_and_delivered_are_kept_by_instance():
    """As they were at each point, and of all bookings together."""
    found = after(reports.cycle(short(0.0)), reports.cycle(short(0.5, 0.3)))
    (shown,) = series(found.points, {KEY[0]}).values()

    assert [(s.booked, pytest.approx(s.delivered)) for s in shown] == [(0.5, 0.4), (0.5, 0.3)]
    assert (found.points[1].booked_refcores, found.points[1].delivered_refcores) == (0.5, 0.3)


def test_shortfall_is_that_since_the_point_before():
    """In reference cores by cause; together it is what was lost in that time."""
    found = after(*(reports.cycle(short(total)) for total in (3.0, 3.5, 3.5)))

    contention = CAUSES.index("contention")
    assert [p.short[contention] for p in found.points] == pytest.approx([0.0, 0.1, 0.0])
    assert lost_ref_s(found.points) == {KEY[0]: pytest.approx(0.5)}


def test_a_restarted_instance_does_not_count_backwards():
    """Its shortfall begins again at nothing."""
    found = after(reports.cycle(short(3.0)), reports.cycle(short(0.0)))

    assert found.points[1].short == pytest.approx((0.0,) * len(CAUSES))


def test_ips_are_shown_in_ips():
    """Of an instance that books them, as far as they are counted."""
    counted = replace(ips(value=2e9), account=Account(last=Last(1.0, 0.7, 1.9e9)))
    found = after(reports.cycle(instance(counted), instance(ips(), name="uncounted")))
    shown = series(found.points, {KEY[0], "uuid-of-uncounted"})

    assert shown[KEY[0]][0].delivered == pytest.approx(1.9e9)
    assert (shown["uuid-of-uncounted"][0].booked, shown["uuid-of-uncounted"][0].delivered) == (
        2.5e9,
        None,
    )


def test_unknown_is_not_nothing():
    """What best effort on several core types gets is not known; its neighbour's delivery is."""
    found = after(reports.cycle(instance(booked()), instance(best_effort(), name="other")))

    assert series(found.points, {"uuid-of-other"})["uuid-of-other"][0].delivered is None
    assert found.points[0].delivered_refcores == pytest.approx(0.4875)


def test_instances_come_and_go():
    """An instance has no value where it was not there."""
    other = instance(booked(), name="other")
    found = after(reports.cycle(other), reports.cycle(instance(booked()), other), reports.cycle())

    assert [s is not None for s in series(found.points, {KEY[0]})[KEY[0]]] == [False, True, False]


def test_points_are_five_seconds_apart_and_end_after_ten_minutes():
    """However many cycles run, and also when the clock was set back."""
    found = History()
    for second in range(2000):
        found = history.advance(found, reports.cycle(instance(booked())), 1000.0 + second)
    assert len(found.points) <= POINTS_MAX
    assert found.points[-1].time_s - found.points[0].time_s == pytest.approx(600.0, abs=5.0)

    found = history.advance(found, reports.cycle(), 500.0)
    assert [p.time_s for p in found.points] == [500.0]


def test_memory_is_bounded():
    """Ten minutes of 400 instances take a few megabytes: points share the names of instances."""
    cycle = reports.cycle(*(instance(booked(), name=f"vm-{i}") for i in range(400)))
    found = after(*([cycle] * 200))

    assert len({id(p.resources) for p in found.points}) == 1
    assert sum(sys.getsizeof(p.values) for p in found.points) < 2e6


def test_changes_are_kept_with_their_reasons():
    """The newest first."""
    found = after(limited("0.5 refcores / 2 on fast"), limited("0.5 refcores / 1 on slow", 50000))

    assert [(c.time_s, c.who, c.what, c.why) for c in found.changes] == [
        (
            1005.0,
            "my instance-00000001 vCPU 0",
            "quota 50000/100000 us",
            "0.5 refcores / 1 on slow",
        ),
        (
            1000.0,
            "my instance-00000001 vCPU 0",
            "quota 25000/100000 us",
            "0.5 refcores / 2 on fast",
        ),
    ]


def test_a_limit_that_varies_is_one_entry():
    """The latest, with how often it changed for this reason."""
    found = after(*(limited("burst", 20000 + i) for i in range(50)))

    assert [(c.what, c.count) for c in found.changes] == [("quota 20049/100000 us", 50)]


def test_changes_are_bounded():
    """However many there are in a cycle or over time."""
    keys = [(f"uuid-of-vm-{i}", 0) for i in range(2 * CHANGES_MAX)]
    domains = [instance(booked(), name=f"vm-{i}") for i in range(2 * CHANGES_MAX)]
    changes = Changes(tuple(Change(key, (Step(),), "a reason") for key in keys))

    assert len(after(reports.cycle(*domains, changes=changes)).changes) == CHANGES_MAX
    assert len(after(*(limited(f"reason {i}") for i in range(200))).changes) == CHANGES_MAX


def test_cpu_weights_and_failures_are_changes():
    """With the sentence of the failure."""
    failed = instance(booked(failure="Permission denied"))
    change = Change(KEY, (Step(),), "released")
    found = after(reports.cycle(failed, changes=Changes((change,), {KEY[0]: 5})))

    assert [(c.what, c.failure) for c in found.changes] == [
        ("no quota", "Permission denied"),
        ("CPU weight 5", None),
    ]
