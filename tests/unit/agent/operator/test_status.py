"""What ``status`` and ``explain`` say of a cycle."""

import json
from dataclasses import replace

import pytest

from amp_nova.agent.operator import status
from amp_nova.control.burst import Burst
from tests import reports

UUID = "uuid-of-instance-00000001"


def explained(*vcpus, **said):
    """The sentences about an instance with these vCPUs."""
    found = reports.report(reports.instance(*vcpus, **said))
    return status.explain(found, UUID)["because"]


def test_status_has_every_figure_of_a_vcpu():
    """Booked, delivered, quota, core type and shortfall by cause, as plain JSON."""
    (found,) = status.status(reports.report(reports.instance(reports.booked())))

    assert json.loads(json.dumps(found)) == {
        "instance": UUID,
        "domain": "instance-00000001",
        "name": "my instance-00000001",
        "project": "5ac0ffee",
        "problem": None,
        "vcpus": [
            {
                "index": 0,
                "kind": "pref_core",
                "booked_refcores": 0.5,
                "booked_ips": None,
                "delivered_refcores": 0.4875,
                "delivered_ips": None,
                "delivered_ratio": 0.975,
                "quota_cores": 0.25,
                "core_type": "fast",
                "pcpus": [2, 3],
                "shortfall_refcore_s": {
                    "throttle": 0.0,
                    "contention": 0.25,
                    "core_type": 0.0,
                    "frequency": 0.0,
                    "smt": 0.0,
                },
                "note": None,
            }
        ],
    }


def test_status_says_null_where_nothing_is_known():
    """What is not known is null, never 0 or 1."""
    (found,) = status.status(reports.report(reports.instance(reports.best_effort())))

    (vcpu,) = found["vcpus"]
    absent = ("booked_refcores", "booked_ips", "delivered_refcores", "delivered_ratio")
    assert [vcpu[key] for key in (*absent, "quota_cores", "core_type")] == [None] * 6


def test_status_is_sorted_by_domain():
    """The order does not depend on libvirt's."""
    names = ("instance-2", "instance-10", "instance-1")

    found = status.status(reports.report(*(reports.instance(name=n) for n in names)))

    assert [i["domain"] for i in found] == ["instance-1", "instance-10", "instance-2"]


def test_booking_is_explained_from_promise_to_delivery():
    """Every figure, where it comes from, and what was lacking."""
    assert explained(reports.booked()) == [
        "vCPU 0 books 0.5 reference cores.",
        "It is kept on core type fast (pCPUs 2, 3), coefficient 2 (calibration).",
        "Its quota is 25000 us in every 100000 us (25.00%): 0.5 refcores / 2 on fast.",
        "In the last window it was delivered 97.5% of what it was owed.",
        "It lacked, in reference-core seconds so far: 0.250 by contention.",
    ]


def test_a_bank_is_explained():
    """Why a limit is above the booking: what was not used may be had now."""
    vcpu = reports.booked()
    promise = replace(vcpu.promise, burst=Burst(0.5, 2.0, 0.25, 1.0, 100_000))
    vcpu = replace(vcpu, promise=promise, account=reports.account(banked_ref_s=0.75))

    said = "It has banked 0.750 reference-core seconds that it did not want, and may have them now."
    assert said in explained(vcpu)


def test_ips_booking_that_is_not_kept_says_why():
    """An instance that books instructions hears what keeps them from being counted."""
    assert explained(reports.ips(note="unverifiable: no counter")) == [
        "vCPU 0 books 2.5e+09 instructions per second.",
        "It has no CPU quota.",
        "Unverifiable: no counter.",
    ]


def test_best_effort_is_explained():
    """Who books nothing is told so."""
    assert explained(reports.best_effort()) == [
        "vCPU 0 is best effort: it books nothing.",
        "It has no CPU quota.",
    ]


def test_quota_of_others_is_told_without_a_reason():
    """A limit that the contract did not set is shown as it is."""
    found = reports.best_effort()
    limited = reports.VcpuReport(reports.reading(0), found.promise, found.account)

    assert "Its quota is 25000 us in every 100000 us (25.00%)." in explained(limited)


def test_problem_comes_first():
    """Why a booking is not kept as a whole is the first thing to know."""
    lines = explained(reports.booked(), problem="amp:limit='x' is not allowed")

    assert lines[0] == "Its booking is not kept: amp:limit='x' is not allowed."


@pytest.mark.parametrize("said", [{"failure": "vCPU 0 cannot be changed"}, {"note": "over-booked"}])
def test_failure_or_note_comes_last(said):
    """What went wrong in this cycle ends the explanation, as a sentence."""
    (text,) = said.values()

    assert explained(reports.booked(**said))[-1] == f"{text[0].upper()}{text[1:]}."


def test_instance_without_readable_vcpus_is_explained_by_its_problem():
    """No vCPU, one sentence."""
    assert explained(problem="its threads cannot be read") == [
        "Its booking is not kept: its threads cannot be read."
    ]
