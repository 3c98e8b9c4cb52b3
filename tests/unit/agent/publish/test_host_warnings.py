# SPDX-License-Identifier: Apache-2.0
"""What an operator is told about a whole host."""

from dataclasses import replace

import pytest
from msgspec import structs

from amp_nova.agent.publish.host_warnings import NO_REPORTS, NO_SCHEDULER, SANDBOX, host_warnings
from amp_nova.agent.threads import HelperThread
from amp_nova.model.allocation import Outcome
from tests.support import reports
from tests.support.reports import best_effort, booked, instance

QUIET = reports.cycle(instance(booked()))


def thread(name, failure=""):
    made = HelperThread(name, print)
    made.failure = failure
    return made


UNHEARD, REPORTING = thread("schedulers", "timed out"), thread("reports")
REFUSED = thread("reports", "ACCESS_REFUSED")


def said(cycle, *threads, sends=True):
    """The kinds of warnings, each with its sentence."""
    return [(w.about, w.sentence) for w in host_warnings(cycle, threads, reports=sends)]


def test_nothing_about_a_host_that_is_well():
    """Threads that succeed are no warning."""
    assert said(QUIET, REPORTING) == []


@pytest.mark.parametrize(
    ("cycle", "threads", "sends", "expected"),
    [
        (
            replace(QUIET, outcome=Outcome(observing=True)),
            (),
            True,
            ("observing", "bookings are only observed: [agent] mode = observe"),
        ),
        (QUIET, (), False, ("no_reports", NO_REPORTS)),
        (
            QUIET,
            (REFUSED,),
            True,
            ("reports_fail", "schedulers get no reports from this host: ACCESS_REFUSED"),
        ),
        (
            QUIET,
            (UNHEARD, REFUSED),
            True,
            ("reports_fail", "schedulers get no reports from this host: ACCESS_REFUSED"),
        ),
        (QUIET, (UNHEARD, REPORTING), True, ("no_scheduler", NO_SCHEDULER)),
        (
            reports.cycle(
                instance(booked()), of=replace(reports.topology(), warnings=("cpu3 is odd",))
            ),
            (),
            True,
            ("topology", "cpu3 is odd"),
        ),
    ],
)
def test_what_keeps_a_host_from_selling_or_keeping_bookings(cycle, threads, sends, expected):
    """Each is one sentence of its own kind."""
    assert said(cycle, *threads, sends=sends) == [expected]


def test_guests_that_may_change_their_own_affinity_are_counted():
    """One sentence for all of them, with one name."""
    cycle = reports.cycle(*(instance(booked(), name=f"instance-0000000{n}") for n in (2, 1, 3)))
    *free, third = cycle.observation.domains
    domains = (*(structs.replace(d, sandboxed=False) for d in free), third)

    assert said(replace(cycle, observation=replace(cycle.observation, domains=domains))) == [
        ("no_sandbox", f"2 guests, such as instance-00000001, {SANDBOX}")
    ]


def test_a_flavor_whose_booking_nova_does_not_tell_is_named_once():
    """Nova before 32.0; not for each server."""
    old = [
        instance(best_effort(), name=name, flavor=flavor, booking_unknown=True)
        for name, flavor in (("a", "m1.small"), ("b", "m1.small"), ("c", "m1.large"))
    ]
    found = said(reports.cycle(*old, instance(best_effort(), name="new")))

    assert [about for about, _ in found] == ["booking_unknown"] * 2
    assert [text.split(":")[0] for _, text in found] == ["flavor m1.large", "flavor m1.small"]
