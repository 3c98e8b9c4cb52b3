# SPDX-License-Identifier: Apache-2.0
"""The last ten minutes, as the page remembers them."""

import math
from dataclasses import replace

import pytest
from msgspec import structs

from amp_nova.accounting.delivery import CAUSES, Account, Last
from amp_nova.agent.publish import snapshot
from amp_nova.agent.publish.snapshot import SPAN_S, STEP_S, History
from amp_nova.control.context import Home
from tests.support import reports
from tests.support.reports import booked, instance, ips

RESOURCE = "uuid-of-instance-00000001"
CONTENTION = 3 + CAUSES.index("contention")


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
        found = snapshot.advance(found, cycle, 1000.0 + i * step_s)
    return found


def test_booked_and_delivered_are_kept_by_instance():
    """As they were at each time."""
    found = after(reports.cycle(short(0.0)), reports.cycle(short(0.5, 0.3)))

    assert [row[:3].tolist() for row in found.rows(RESOURCE)] == [
        pytest.approx([0.5, 0.4, 0.0]),
        pytest.approx([0.5, 0.3, 5.0]),
    ]


def test_shortfall_is_that_since_the_time_before():
    """In reference cores by cause."""
    found = after(*(reports.cycle(short(total)) for total in (3.0, 3.5, 3.5)))

    assert [r[CONTENTION] for r in found.rows(RESOURCE)] == pytest.approx([0.0, 0.1, 0.0])


def test_a_restarted_instance_does_not_count_backwards():
    """Its shortfall begins again at nothing."""
    found = after(reports.cycle(short(3.0)), reports.cycle(short(0.0)))

    assert not any(found.rows(RESOURCE)[1][3:])


def test_ips_count_as_the_reference_cores_that_they_are_worth():
    """Of an instance that books them, as far as they are counted."""
    entitlement = structs.replace(ips(value=2e9).entitlement, home=Home("fast", 2, 0.5))
    counted = replace(ips(), entitlement=entitlement, account=Account(last=Last(1.0, 0.7, 1e9)))
    found = after(reports.cycle(instance(counted), instance(ips(), name="uncounted")))

    assert found.rows(RESOURCE)[0][:2].tolist() == [1.0, 0.5]
    assert math.isnan(found.rows("uuid-of-uncounted")[0][1])


def test_instances_come_and_go():
    """One that arrives later has fewer rows; nothing is kept of one that has gone."""
    other = instance(booked(), name="other")
    found = after(reports.cycle(other), reports.cycle(instance(booked()), other))

    assert (len(found.rows(RESOURCE)), len(found.rows("uuid-of-other"))) == (1, 2)
    assert after(reports.cycle(other), reports.cycle()).values == {}
    assert found.rows("uuid-of-nobody") == []


def test_times_are_five_seconds_apart_and_end_after_ten_minutes():
    """However many cycles run, and also when the clock was set back."""
    found = History()
    for second in range(700):
        found = snapshot.advance(found, reports.cycle(instance(booked())), 1000.0 + second)
    assert len(found.times_s) == len(found.rows(RESOURCE)) <= SPAN_S / STEP_S + 2
    assert found.times_s[-1] - found.times_s[0] == pytest.approx(600.0, abs=5.0)

    found = snapshot.advance(found, reports.cycle(), 500.0)
    assert found.times_s == (500.0,)
